"""Checks of a machine with GPUs, on stand-ins for the driver and for what torch reports."""

from pathlib import Path
from typing import Any

import pynvml
import pytest

from tests.support.gpus.nvml import Gpu, Nvml
from worker.devices.gpus import gpus
from worker.doctor.check import Context, TorchView
from worker.doctor.checks.gpus import devices, driver, torch_build

A, B = "GPU-aaaaaaaa-0000-0000-0000-000000000000", "GPU-bbbbbbbb-0000-0000-0000-000000000000"
NAME = "NVIDIA A100-SXM4-80GB"


def context(*uuids: str, cuda: str | None = "13.0", **view: Any) -> Context:
    seen: Any = [
        {"index": index, "name": NAME, "uuid": uuid, "capability": [8, 0]}
        for index, uuid in enumerate(uuids)
    ]
    known = {"version": "2.13.0", "cuda_build": cuda, "available": bool(uuids), "devices": seen}
    return Context(scratch=Path(), gpus=gpus(), torch=TorchView(**known, **view))


class TestDriver:
    def test_a_driver_of_the_same_generation_is_ok(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu(A)], driver="580.82.07", cuda=13000).install(monkeypatch)
        found = driver(context(A, cuda="13.2"))
        assert (found.status, found.summary) == ("ok", "driver 580.82.07 (CUDA 13.0), 1 GPU(s)")

    def test_an_older_one_is_too_old(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu(A)], driver="550.54.15", cuda=12040).install(monkeypatch)
        found = driver(context(cuda="13.0"))
        needed = "driver 580.65.06 or newer"
        assert found.status == "failed"
        assert found.reason == f"This torch is built with CUDA 13.0, which needs {needed}."
        assert found.remedy.startswith(f"Install {needed}, or a torch")

    @pytest.mark.parametrize(
        ("error", "status", "reason"),
        [
            (pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, "not_run", "no NVIDIA driver is loaded here"),
            (
                pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
                "failed",
                "RM has detected an NVML/RM version mismatch.",
            ),
        ],
    )
    def test_only_one_that_does_not_respond_fails(
        self, monkeypatch: pytest.MonkeyPatch, error: int, status: str, reason: str
    ) -> None:
        Nvml(init_error=error).install(monkeypatch)
        found = driver(context())
        assert found.status == status
        assert found.reason.startswith(reason)


class TestTorch:
    @pytest.mark.parametrize(
        ("build", "reason", "summary", "remedy"),
        [
            (None, "Torch not compiled with CUDA enabled", "a CPU build", "Install the CUDA build"),
            ("13.0", "Your driver is too old", "built with CUDA 13.0", "Update NVIDIA's driver"),
        ],
    )
    def test_one_that_cannot_use_the_gpu_gives_its_reason(
        self,
        monkeypatch: pytest.MonkeyPatch,
        build: str | None,
        reason: str,
        summary: str,
        remedy: str,
    ) -> None:
        Nvml([Gpu(A)]).install(monkeypatch)
        found = torch_build(context(cuda=build, reason=reason))
        assert (found.status, found.reason) == ("failed", reason)
        assert found.summary == f"torch 2.13.0, {summary}, cannot use the 1 GPU(s) of this machine"
        assert found.remedy.startswith(remedy)

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
        found = torch_build(context(A, architectures=built))
        assert found.status == status
        assert ("has no kernels for NVIDIA A100" in found.summary) == (status == "failed")


ONE, OTHER = Gpu("MIG-aaaaaaaa-1"), Gpu("MIG-aaaaaaaa-2")


@pytest.mark.parametrize(
    ("present", "cuda", "status", "says"),
    [
        ([Gpu(A), Gpu(B)], [A, B], "ok", "NVML and CUDA agree"),
        # torch leaves the prefix out of some kinds of UUID.
        ([Gpu(A), Gpu(B)], [A.removeprefix("GPU-"), B], "ok", "NVML and CUDA agree"),
        ([Gpu(A), Gpu(B)], [B, A], "warning", "CUDA_DEVICE_ORDER=PCI_BUS_ID"),
        ([Gpu(A).cut(ONE, OTHER)], ["MIG-aaaaaaaa-2"], "ok", "one of the 2 GPUs"),
        ([Gpu(A).cut(ONE, OTHER)], ["MIG-cccccccc-1"], "failed", "not the same"),
        ([Gpu(A), Gpu(B)], [A], "failed", "NVML lists 2 GPU(s) and CUDA 1, and they are not the"),
    ],
)
def test_devices(
    monkeypatch: pytest.MonkeyPatch, present: list[Gpu], cuda: list[str], status: str, says: str
) -> None:
    Nvml(present).install(monkeypatch)
    found = devices(context(*cuda))
    assert found.status == status
    assert says in f"{found.summary} {found.remedy}"
