"""Checks of a machine with GPUs, on stand-ins for the driver and for what torch reports."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.fakes.nvml import Gpu, Nvml
from worker.devices.gpus import gpus
from worker.doctor.check import Context, TorchView
from worker.doctor.checks.devices import devices
from worker.doctor.checks.driver import driver
from worker.doctor.checks.torch_build import torch_build

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"


def seen(uuid: str, index: int) -> dict[str, Any]:
    return {"index": index, "name": "NVIDIA A100-SXM4-80GB", "uuid": uuid, "capability": [8, 0]}


def context(*uuids: str, cuda: str | None = "13.0", reason: str = "") -> Context:
    view = TorchView(
        version="2.13.0",
        cuda_build=cuda,
        available=bool(uuids),
        reason=reason,
        devices=[seen(uuid, index) for index, uuid in enumerate(uuids)],
    )
    return Context(scratch=Path(), gpus=gpus(), torch=view)


class TestDriver:
    def test_a_driver_of_the_same_generation_is_ok(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu(A)], driver="580.82.07", cuda=13000).install(monkeypatch)
        found = driver(context(A, cuda="13.2"))
        assert (found.status, found.summary) == ("ok", "driver 580.82.07 (CUDA 13.0), 1 GPU(s)")

    def test_an_older_one_is_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu(A)], driver="550.54.15", cuda=12040).install(monkeypatch)
        found = driver(context(cuda="13.0"))
        assert found.status == "failed"
        assert (
            found.reason
            == "This torch is built with CUDA 13.0, which needs driver 580.65.06 or newer."
        )
        assert found.remedy.startswith("Install driver 580.65.06 or newer, or a torch")

    def test_no_driver_is_not_a_failure(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND).install(monkeypatch)
        assert driver(context()).status == "not_run"

    def test_a_driver_that_does_not_respond_fails(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml(init_error=pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH).install(monkeypatch)
        found = driver(context())
        assert (found.status, found.reason) == (
            "failed",
            "RM has detected an NVML/RM version mismatch.",
        )


class TestTorch:
    def test_a_cpu_build_on_a_machine_with_a_gpu_fails(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Nvml([Gpu(A)]).install(monkeypatch)
        found = torch_build(context(cuda=None, reason="Torch not compiled with CUDA enabled"))
        assert found.status == "failed"
        assert found.summary == "torch 2.13.0, a CPU build, cannot use the 1 GPU(s) of this machine"
        assert found.reason == "Torch not compiled with CUDA enabled"
        assert found.remedy.startswith("Install the CUDA build")

    def test_a_cuda_build_that_cannot_start_gives_torchs_reason(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        Nvml([Gpu(A)]).install(monkeypatch)
        found = torch_build(context(reason="The NVIDIA driver on your system is too old"))
        assert (found.status, found.reason) == (
            "failed",
            "The NVIDIA driver on your system is too old",
        )
        assert found.remedy.startswith("Update NVIDIA's driver")

    @pytest.mark.parametrize(
        ("built", "status"),
        [
            (["sm_80", "sm_90"], "ok"),
            (["sm_75", "compute_75"], "ok"),
            (["sm_75", "sm_90a"], "failed"),
            (["sm_86", "compute_90"], "failed"),
        ],
    )
    def test_kernels_for_the_gpu(
        self, monkeypatch: pytest.MonkeyPatch, built: list[str], status: str
    ) -> None:
        Nvml([Gpu(A)]).install(monkeypatch)
        plain = context(A)
        view = plain.torch.model_copy(update={"architectures": built})
        found = torch_build(plain.model_copy(update={"torch": view}))
        assert found.status == status
        assert ("has no kernels for NVIDIA A100" in found.summary) == (status == "failed")


class TestDevices:
    def test_the_same_in_the_same_order(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu(A), Gpu(B)]).install(monkeypatch)
        assert devices(context(A, B)).status == "ok"
        # torch leaves the prefix out of some kinds of UUID.
        assert devices(context(A.removeprefix("GPU-"), B)).status == "ok"

    def test_another_order_is_a_warning(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu(A), Gpu(B)]).install(monkeypatch)
        found = devices(context(B, A))
        assert found.status == "warning"
        assert "CUDA_DEVICE_ORDER=PCI_BUS_ID" in found.remedy

    def test_cuda_shows_one_mig_instance_of_several(self, monkeypatch: pytest.MonkeyPatch) -> None:
        one, other = Gpu("MIG-aaaaaaaa-1"), Gpu("MIG-aaaaaaaa-2")
        Nvml([Gpu(A).cut(one, other)]).install(monkeypatch)
        assert devices(context("MIG-aaaaaaaa-2")).status == "ok"
        assert devices(context("MIG-cccccccc-1")).status == "failed"

    def test_other_gpus_fail(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu(A), Gpu(B)]).install(monkeypatch)
        found = devices(context(A))
        assert found.status == "failed"
        assert found.summary == "NVML lists 2 GPU(s) and CUDA 1, and they are not the same"
