"""worker.training.build: the parts by the job's options."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from service.contract.failures import FailureCode
from service.contract.spec.training import TrainingSpec
from tests.training.support.factories import spec_of, tiny_bert
from tests.training.support.jobs import fails_with
from worker.training import build


class TestAccelerator:
    @pytest.mark.parametrize(
        ("training", "sections", "option"),
        [
            ({}, {"resources": {"gpus": 1}}, "resources.gpus"),
            ({"fp16": True}, {}, "training.fp16"),
        ],
    )
    def test_what_this_machine_cannot_do_is_refused(
        self, training: dict[str, Any], sections: dict[str, Any], option: str
    ) -> None:
        if torch.cuda.is_available():
            pytest.skip("this machine has a GPU")
        with fails_with(FailureCode.INVALID_OPTION) as caught:
            build.accelerator(spec_of(training, **sections))
        assert caught.value.failure.details == {"option": option}

    @pytest.mark.parametrize(
        ("training", "name"),
        [({"bf16": False}, "no"), ({"bf16": True}, "bf16"), ({"fp16": True}, "fp16")],
    )
    def test_precision(self, training: dict[str, Any], name: str) -> None:
        assert build.mixed_precision(TrainingSpec.model_validate(training)) == name


class TestModel:
    def test_new_weights_are_named(self, tmp_path: Path) -> None:
        tiny_bert().bert.save_pretrained(tmp_path)
        auto = transformers.AutoModelForQuestionAnswering
        model, new = build.load_model(auto, tmp_path, "float32", {})
        assert new == ["qa_outputs.bias", "qa_outputs.weight"]
        assert {value.dtype for value in model.parameters()} == {torch.float32}

    def test_dtype(self, tmp_path: Path) -> None:
        tiny_bert().save_pretrained(tmp_path)
        auto = transformers.AutoModelForQuestionAnswering
        model, new = build.load_model(auto, tmp_path, "bfloat16", {})
        assert new == []
        assert {value.dtype for value in model.parameters()} == {torch.bfloat16}

    def test_weights_begin_where_torch_puts_its_own(self, tmp_path: Path) -> None:
        """Those of a mapped file begin anywhere; products of single rows depend on the place."""
        model = tiny_bert()
        apart = model.qa_outputs.weight
        room = torch.empty(apart.numel() + 1)
        apart.data = room[1:].view(apart.shape).copy_(apart.data)
        expected = apart.detach().clone()
        others = [each.data_ptr() for each in model.bert.parameters()]
        build.align_weights(model)
        assert all(each.data_ptr() % 64 == 0 for each in model.parameters())
        assert model.qa_outputs.weight is apart
        assert torch.equal(apart, expected)
        assert [each.data_ptr() for each in model.bert.parameters()] == others

    def test_pickled_weights_are_not_read(self, tmp_path: Path) -> None:
        model = tiny_bert()
        model.config.save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        auto = transformers.AutoModelForQuestionAnswering
        with pytest.raises(OSError, match="safetensors"):
            build.load_model(auto, tmp_path, "float32", {})
