"""worker.training.build: the parts by the job's options."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from transformers import BertConfig, BertForQuestionAnswering

from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec
from tests.training.support import rows, tiny_model
from worker.training import build
from worker.training.plan import Plan


def spec_of(training: dict[str, Any], **sections: Any) -> JobSpec:
    return JobSpec.model_validate(
        {
            "task": "question-answering",
            "model": {"name_or_path": "/models/tiny"},
            "dataset": {"source": "path", "train": "/data/train.json"},
            "training": training,
            **sections,
        }
    )


def tiny_bert() -> BertForQuestionAnswering:
    return BertForQuestionAnswering(
        BertConfig(
            vocab_size=48,
            hidden_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            intermediate_size=32,
        )
    )


def trainer_groups(model: Any, folder: Path) -> list[set[str]]:
    """Names with and without decay, by transformers.Trainer."""
    args = transformers.TrainingArguments(output_dir=str(folder), use_cpu=True, report_to="none")
    decayed = set(transformers.Trainer(model=model, args=args).get_decay_parameter_names(model))
    names = {name for name, _ in model.named_parameters()}  # a tied weight has one of its two
    return [decayed & names, names - decayed]


class TestParameterGroups:
    @pytest.mark.parametrize("make", [tiny_bert, tiny_model])
    def test_no_decay_on_biases_and_norms(self, make: Any, tmp_path: Path) -> None:
        model = make()
        names = {value: name for name, value in model.named_parameters()}
        groups = build.parameter_groups(model, 0.1)
        found = [{names[value] for value in group["params"]} for group in groups]
        assert [group["weight_decay"] for group in groups] == [0.1, 0.0]
        assert found == trainer_groups(model, tmp_path)
        assert {name for name in names.values() if name.endswith("bias")} <= found[1]
        modules = dict(model.named_modules())
        norms = {n for n, m in modules.items() if isinstance(m, torch.nn.LayerNorm)}
        assert norms
        assert {f"{name}.weight" for name in norms} <= found[1]

    def test_frozen_weights_are_in_no_group(self) -> None:
        model = tiny_bert()
        model.bert.requires_grad_(False)
        groups = build.parameter_groups(model, 0.1)
        assert [len(group["params"]) for group in groups] == [1, 1]


class TestOptimizer:
    def test_adamw(self) -> None:
        spec = TrainingSpec(
            optim="adamw_torch", learning_rate=0.3, adam_beta1=0.1, adam_beta2=0.2, adam_epsilon=0.4
        )
        optimizer = build.optimizer(tiny_bert(), spec)
        assert type(optimizer) is torch.optim.AdamW
        known = ("lr", "betas", "eps", "fused")
        expected = {"lr": 0.3, "betas": (0.1, 0.2), "eps": 0.4, "fused": False}
        assert {name: optimizer.defaults[name] for name in known} == expected

    def test_fused_is_the_default(self) -> None:
        assert build.optimizer(tiny_bert(), TrainingSpec()).defaults["fused"] is True

    def test_adafactor_as_trainer_sets_it(self) -> None:
        optimizer = build.optimizer(tiny_bert(), TrainingSpec(optim="adafactor"))
        assert type(optimizer) is transformers.Adafactor
        assert optimizer.defaults["scale_parameter"] is False
        assert optimizer.defaults["relative_step"] is False


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
        with pytest.raises(StageError) as caught:
            build.accelerator(spec_of(training, **sections))
        assert caught.value.failure.code is FailureCode.INVALID_OPTION
        assert caught.value.failure.details == {"option": option}

    @pytest.mark.parametrize(
        ("training", "name"), [({}, "no"), ({"bf16": True}, "bf16"), ({"fp16": True}, "fp16")]
    )
    def test_precision(self, training: dict[str, Any], name: str) -> None:
        assert build.precision(TrainingSpec.model_validate(training)) == name


class TestCores:
    @pytest.mark.parametrize(
        ("limit", "expected"), [("max 100000", 3), ("150000 100000", 2), ("900000 100000", 3)]
    )
    def test_affinity_and_the_containers_limit(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, limit: str, expected: int
    ) -> None:
        monkeypatch.setattr("os.sched_getaffinity", lambda pid: {0, 1, 2})
        (tmp_path / "cpu.max").write_text(limit + "\n")
        assert build.cores(tmp_path / "cpu.max") == expected
        assert build.cores(tmp_path / "missing") == 3


class TestModel:
    def test_new_weights_are_named(self, tmp_path: Path) -> None:
        tiny_bert().bert.save_pretrained(tmp_path)
        auto = transformers.AutoModelForQuestionAnswering
        model, new = build.model(auto, tmp_path, "float32")
        assert new == ["qa_outputs.bias", "qa_outputs.weight"]
        assert {value.dtype for value in model.parameters()} == {torch.float32}

    def test_dtype(self, tmp_path: Path) -> None:
        tiny_bert().save_pretrained(tmp_path)
        auto = transformers.AutoModelForQuestionAnswering
        model, new = build.model(auto, tmp_path, "bfloat16")
        assert new == []
        assert {value.dtype for value in model.parameters()} == {torch.bfloat16}

    def test_pickled_weights_are_not_read(self, tmp_path: Path) -> None:
        model = tiny_bert()
        model.config.save_pretrained(tmp_path)
        torch.save(model.state_dict(), tmp_path / "pytorch_model.bin")
        auto = transformers.AutoModelForQuestionAnswering
        with pytest.raises(OSError, match="safetensors"):
            build.model(auto, tmp_path, "float32")


class TestLoader:
    def test_it_draws_no_random_number(self) -> None:
        data = rows(7)
        before = torch.get_rng_state()
        batches = list(build.loader(data, build.chunks(range(7), 3), lambda group: group))
        assert batches == [data[:3], data[3:6], data[6:]]
        assert torch.equal(torch.get_rng_state(), before)


class TestScheduler:
    def test_warm_up_of_a_ratio(self) -> None:
        spec = TrainingSpec(max_steps=10, warmup_steps=0.15, learning_rate=1.0)
        optimizer = build.optimizer(tiny_bert(), spec)
        scheduler = build.scheduler(optimizer, Plan.of(spec, 8))
        rates = []
        for _ in range(10):
            rates.append(scheduler.get_last_lr()[0])
            optimizer.step()
            scheduler.step()
        assert rates[:4] == [0.0, 0.5, 1.0, 7 / 8]
