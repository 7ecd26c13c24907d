"""GPUs that the worker gave to a job: by the real torch, which has none here, and by stand-ins."""

import os
import warnings
from pathlib import Path

import pytest
import torch

from service.contract.failures import Failure, FailureCode, StageError
from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from tests.contract.factories import job_spec
from worker.stages.base import Channel
from worker.stages.train import stage
from worker.training import gpu_check

IS_CPU_BUILD = torch.version.cuda is None
OLD_DRIVER = (
    "The NVIDIA driver on your system is too old (found version 11040). Please update your GPU "
    "driver by downloading and installing a new version"
)
NO_KERNELS = (
    "Found GPU0 Tesla V100-SXM2-16GB which is of compute capability (CC) 7.0.\n"
    "Your installed torch==2.13.0 does not include kernels for this GPU."
)
NO_IMAGE = "CUDA error: no kernel image is available for execution on the device"


class Cuda:
    """CUDA that starts and shows `count` devices, which compute on the CPU."""

    def __init__(
        self,
        monkeypatch: pytest.MonkeyPatch,
        *,
        count: int = 1,
        init_error: Exception | None = None,
        warning: str = "",
        compute_error: Exception | None = None,
    ) -> None:
        self.computed: list[str] = []
        real = torch.ones

        def init() -> None:
            if warning:
                warnings.warn(warning, stacklevel=2)
            if init_error is not None:
                raise init_error

        def ones(size: int, *, device: str) -> torch.Tensor:
            self.computed.append(device)
            if compute_error is not None:
                raise compute_error
            return real(size)

        monkeypatch.setattr(torch.cuda, "init", init)
        monkeypatch.setattr(torch.cuda, "device_count", lambda: count)
        monkeypatch.setattr(torch, "ones", ones)


def failure(given: list[str]) -> Failure:
    with pytest.raises(StageError) as caught:
        gpu_check.require(given, 0)
    found = caught.value.failure
    assert found.code is FailureCode.DEVICE_ERROR
    assert found.details["gpus"] == given
    return found


class TestThisTorch:
    @pytest.mark.skipif(not IS_CPU_BUILD, reason="of a build for the CPU")
    def test_a_build_for_the_cpu(self) -> None:
        found = failure(["GPU-a"])
        assert found.message == (
            f"This worker gave the job GPU-a, but torch {torch.__version__}, built for the CPU, "
            "cannot use it: Torch not compiled with CUDA enabled"
        )
        assert "install a CUDA build of torch" in found.action

    def test_nothing_is_asked_of_a_cpu_job(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Cuda(monkeypatch, init_error=RuntimeError("CUDA was started"))
        gpu_check.require([], 0)

    @pytest.mark.skipif(not IS_CPU_BUILD, reason="of a build for the CPU")
    def test_ends_the_stage_before_it_reads_anything(self, tmp_path: Path) -> None:
        request = StageRequest(
            job_id="j",
            stage=Stage.TRAIN,
            epoch=1,
            attempt=1,
            spec=job_spec(),
            workspace=tmp_path,
            attempt_dir=tmp_path / "attempts" / "1",
            cache_dir=tmp_path / "cache",
            gpus=["GPU-a"],
        )
        reader, writer = os.pipe()
        with os.fdopen(reader), os.fdopen(writer, "w"), pytest.raises(StageError) as caught:
            stage.main(request, Channel(writer))
        assert caught.value.failure.code is FailureCode.DEVICE_ERROR
        assert list(tmp_path.iterdir()) == []


class TestOtherReasons:
    def test_an_old_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Cuda(monkeypatch, init_error=RuntimeError(OLD_DRIVER))
        found = failure(["GPU-a"])
        assert found.message.endswith(f"cannot use it: {OLD_DRIVER}")
        assert "NVIDIA driver, or to install" in found.action

    def test_a_gpu_without_kernels(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Cuda(monkeypatch, warning=NO_KERNELS, compute_error=torch.AcceleratorError(NO_IMAGE))
        found = failure(["GPU-a"])
        assert found.message.endswith(f"{NO_IMAGE}; {NO_KERNELS}")
        assert "with kernels for this GPU" in found.action

    def test_fewer_than_were_given(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = Cuda(monkeypatch, count=1)
        found = failure(["MIG-1", "MIG-2"])
        assert found.message.endswith("cannot use them: CUDA shows 1 of 2 GPUs")
        assert "finetune doctor" in found.action
        assert cuda.computed == []

    def test_a_full_gpu_is_another_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Cuda(monkeypatch, compute_error=torch.AcceleratorError("CUDA error: out of memory"))
        with pytest.raises(torch.AcceleratorError, match="out of memory"):
            gpu_check.require(["GPU-a"], 0)


class TestGpusThatWork:
    def test_each_rank_tries_its_own(self, monkeypatch: pytest.MonkeyPatch) -> None:
        cuda = Cuda(monkeypatch, count=2)
        gpu_check.require(["GPU-a", "GPU-b"], 1)
        assert cuda.computed == ["cuda:1"]

    def test_a_warning_is_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Cuda(monkeypatch, warning="Can't initialize NVML")
        with pytest.warns(UserWarning, match="Can't initialize NVML"):
            gpu_check.require(["GPU-a"], 0)
