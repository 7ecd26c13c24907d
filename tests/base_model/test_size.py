"""Whether a model fits, before a weight is made."""

import itertools
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForQuestionAnswering, BertConfig

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from worker.base_model import checks, resource_guard, size
from worker.base_model.size import Room, Size
from worker.devices import memory

GIB = 1024**3
BILLION = Size(parameters=10**9, buffers=0)


def spec(**changes: Any) -> JobSpec:
    body: dict[str, Any] = {
        "task": "causal-lm",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data"},
    }
    return JobSpec.model_validate(body | changes)


class TestTrainingBytes:
    @pytest.mark.parametrize(
        ("changes", "bytes_each"),
        [
            ({"training": {"optim": "adamw_torch"}}, 16),  # weights, gradients, two moments
            ({"training": {"optim": "sgd"}}, 8),
            ({"training": {"optim": "adamw_torch"}, "model": {"dtype": "bfloat16"}}, 8),
            ({"peft": {"method": "lora"}}, 4),
            ({"mode": "predict"}, 4),
        ],
    )
    def test_are_the_least_that_a_job_needs(self, changes: dict[str, Any], bytes_each: int) -> None:
        if "model" in changes:
            changes = changes | {"model": {"name_or_path": "org/model", **changes["model"]}}
        if changes.get("mode") == "predict":
            dataset = {"source": "hub", "name": "org/data", "test": "test"}
            changes = changes | {"dataset": dataset}
        assert BILLION.training_bytes(spec(**changes)) == bytes_each * 10**9


class TestRequire:
    def test_a_host_that_is_too_small(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(size, "host_bytes", lambda: 8 * GIB)
        with pytest.raises(StageError) as caught:
            size.require_fits_host(BILLION, spec())
        failure = caught.value.failure
        assert failure.code is FailureCode.MODEL_TOO_LARGE
        assert failure.message == (
            "The model has 1,000,000,000 parameters: its weights need 3,815 MiB of memory and "
            "gradients and optimizer 11,444 MiB in addition, and this machine has 8,192 MiB"
        )
        assert failure.details == {
            "parameters": 10**9,
            "bytes_needed": 16 * 10**9,
            "bytes_there": 8 * GIB,
        }
        size.require_fits_host(BILLION, spec(peft={"method": "lora"}))

    def test_a_gpu_that_is_too_small(self) -> None:
        with pytest.raises(StageError, match=r"and the GPU has 12,288 MiB"):
            size.require_fits_gpu(BILLION, spec(), Room(12 * GIB, 12 * GIB))
        size.require_fits_gpu(BILLION, spec(), Room(16 * GIB, 16 * GIB))
        quantized = {"method": "lora", "quantization": {"bits": 8}}
        size.require_fits_gpu(BILLION, spec(peft=quantized), Room(1 * GIB, 1 * GIB))

    def test_a_gpu_that_others_use_now(self) -> None:
        with pytest.raises(StageError, match="and the GPU has free now 15,258 MiB") as caught:
            size.require_fits_gpu(BILLION, spec(), Room(15_999_000_000, 24 * GIB))
        assert caught.value.failure.code is FailureCode.INSUFFICIENT_RESOURCES
        assert caught.value.failure.details == {
            "bytes_needed": 16 * 10**9,
            "bytes_there": 15_999_000_000,
            "bytes_total": 24 * GIB,
            "resource": "gpu_memory",
        }

    def test_memory_that_others_use_now(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(memory, "total_bytes", lambda: 24 * GIB)
        monkeypatch.setattr(memory, "free_bytes", lambda: 14 * GIB)
        with pytest.raises(StageError, match="this machine has free now 14,336 MiB") as caught:
            size.require_free_memory(BILLION, spec())
        assert caught.value.failure.is_lack
        # So much is free on an idle machine at best, or with swap: the training may try.
        monkeypatch.setattr(memory, "total_bytes", lambda: 16 * GIB)
        size.require_free_memory(BILLION, spec())

    def test_a_disk_that_others_use_now(self, tmp_path: Path) -> None:
        usage = shutil.disk_usage(tmp_path)
        larger = Size((usage.free + usage.total) // 8, 0)
        with pytest.raises(StageError, match="on the disk, which has free now") as caught:
            size.require_fits_disk(larger, spec(), tmp_path)
        assert caught.value.failure.code is FailureCode.DISK_FULL
        assert caught.value.failure.is_lack

    def test_a_disk_without_room_for_the_model(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match=r"on the disk, which has [0-9]") as caught:
            size.require_fits_disk(Size(10**15, 0), spec(), tmp_path)
        assert caught.value.failure.code is FailureCode.MODEL_TOO_LARGE
        assert caught.value.failure.details["bytes_needed"] == 4 * 10**15
        size.require_fits_disk(Size(10**15, 0), spec(peft={"method": "lora"}), tmp_path)

    def test_the_limit_of_a_container_counts(self, tmp_path: Path) -> None:
        (tmp_path / "memory.max").write_text("1048576\n")
        assert size.host_bytes(tmp_path / "memory.max") == 1048576
        (tmp_path / "memory.max").write_text("max\n")
        assert size.host_bytes(tmp_path / "memory.max") > 1048576


class TestGuard:
    def test_a_computation_without_an_end(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource_guard, "_SECONDS", 0.2)
        with pytest.raises(StageError) as caught:
            resource_guard.build("Reading", lambda: sum(1 for _ in itertools.repeat(1)))
        assert caught.value.failure.code is FailureCode.MODEL_TOO_LARGE
        assert "of computing" in caught.value.failure.message

    def test_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(resource_guard, "_MEMORY", 64 * 1024**2)
        with pytest.raises(StageError) as caught:
            resource_guard.build("Reading", lambda: bytearray(256 * 1024**2))
        assert caught.value.failure.code is FailureCode.MODEL_TOO_LARGE

    def test_a_model_is_measured_without_its_weights(self) -> None:
        config = BertConfig(hidden_size=8192, num_hidden_layers=64, num_attention_heads=64)
        model = checks.without_weights(AutoModelForQuestionAnswering, config)
        assert size.of_model(model).parameters > 10**10
