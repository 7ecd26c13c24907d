"""service.contract.strategies: processes, GPUs and how they work together."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.strategies import DDPSpec, ResourcesSpec
from tests.contract.factories import job_spec


class TestProcesses:
    @pytest.mark.parametrize(
        ("given", "processes"),
        [
            ({}, 1),
            ({"gpus": 0}, 1),
            ({"gpus": 1}, 1),
            ({"gpus": 4}, 4),
            ({"gpus": 4, "num_processes": 4}, 4),
            ({"gpus": 0, "num_processes": 2}, 2),
        ],
    )
    def test_one_for_each_gpu(self, given: dict[str, int], processes: int) -> None:
        assert ResourcesSpec.model_validate(given).processes == processes

    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({"gpus": 4, "num_processes": 2}, "one process for each GPU, but `gpus` is 4"),
            ({"num_processes": 2}, "`num_processes: 2` needs `gpus`"),
            ({"gpus": 65}, "less than or equal to 64"),
            ({"gpus": 0, "num_processes": 65}, "less than or equal to 64"),
            ({"strategy": "ddp"}, "`strategy` is for several processes"),
            ({"gpus": 1, "strategy": "ddp"}, "`strategy` is for several processes"),
        ],
    )
    def test_contradictions(self, given: dict[str, Any], sentence: str) -> None:
        with pytest.raises(ValidationError, match=sentence):
            ResourcesSpec.model_validate(given)

    @pytest.mark.parametrize("option", [{"auto_find_batch_size": True}, {"on_oom": "halve_batch"}])
    def test_smaller_batches_by_themselves_are_for_one(self, option: dict[str, Any]) -> None:
        job_spec(training=option, resources={"gpus": 1})
        with pytest.raises(ValidationError, match="is for one process"):
            job_spec(training=option, resources={"gpus": 2})


class TestStrategy:
    def test_its_name_alone_means_its_defaults(self) -> None:
        given = ResourcesSpec.model_validate({"gpus": 2, "strategy": "ddp"})
        assert given.strategy == given.chosen_strategy == DDPSpec()
        assert ResourcesSpec(gpus=2).chosen_strategy == DDPSpec()

    @pytest.mark.parametrize(
        ("strategy", "sentence"),
        [
            ({"type": {}}, "Input should be 'ddp'"),
            ("fsdp", "`fsdp` is refused: weights are not spread"),
            ({"type": "deepspeed", "zero_stage": 2}, "`deepspeed` is refused: its package"),
            ({"type": "ddp", "bucket_cap": 1}, "Extra inputs are not permitted"),
            ({"type": "ddp", "bucket_cap_mb": 0}, "greater than or equal to 1"),
            ({"type": "ddp", "timeout": 0}, "greater than or equal to 1"),
            ({"type": "dpp"}, "Input should be 'ddp'"),
        ],
    )
    def test_refusals(self, strategy: Any, sentence: str) -> None:
        with pytest.raises(ValidationError, match=sentence):
            ResourcesSpec.model_validate({"gpus": 2, "strategy": strategy})
