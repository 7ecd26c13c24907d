from typing import Any

import pynvml
import pytest
from structlog.testing import capture_logs

from service.contract.routing import most_for_one_job
from tests.support.gpus.nvml import GIB, NO_PERMISSION, NOT_SUPPORTED, Gpu, Nvml
from worker.devices import gpus as devices

LOST: int = pynvml.NVML_ERROR_GPU_IS_LOST


@pytest.fixture(autouse=True)
def _all_visible(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)


def two() -> list[Gpu]:
    second = Gpu("GPU-b1", name="second", memory_bytes=2048, capability=(7, 5))
    return [Gpu("GPU-a1", name="first", memory_bytes=1024), second]


def cut_and_whole() -> list[Gpu]:
    """A GPU with two MIG instances, between which one was destroyed, and a GPU without MIG."""
    small = Gpu("MIG-1", name="A100 MIG 1g.10gb", memory_bytes=10 * GIB)
    large = Gpu("MIG-2", name="A100 MIG 3g.40gb", memory_bytes=40 * GIB)
    return [Gpu("GPU-cut", name="A100").cut(small, None, large), Gpu("GPU-whole")]


def uuids(found: list[dict[str, Any]]) -> list[str]:
    return [gpu["uuid"] for gpu in found]


class TestVisible:
    @pytest.mark.parametrize(
        ("visible", "names"),
        [
            (None, ["first", "second"]),
            ("", []),
            ("-1", []),
            ("NoDevFiles", []),
            ("1", ["second"]),
            ("1, 0", ["second", "first"]),
            ("0,7,1", ["first"]),
            ("GPU-b1", ["second"]),
            ("GPU-b,0", ["second", "first"]),
            ("GPU-", []),
            ("GPU-other,0", []),
            ("1,1", []),
            ("0,1,GPU-a", []),
        ],
    )
    def test_the_devices_that_cuda_would_show(
        self, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
    ) -> None:
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        nvml = Nvml(two()).install(monkeypatch)
        found = devices.gpus()
        assert [gpu["name"] for gpu in found] == names
        assert [gpu["index"] for gpu in found] == list(range(len(names)))
        assert nvml.users == 0

    @pytest.mark.parametrize(
        ("visible", "problem"),
        [
            ("GPU-c", "CUDA_VISIBLE_DEVICES: there is no GPU-c"),
            ("7", "CUDA_VISIBLE_DEVICES: there is no 7"),
            ("0,0", "CUDA_VISIBLE_DEVICES has 0 twice, so CUDA shows no GPU"),
            ("-1", None),
            ("", None),
        ],
    )
    def test_the_reason_why_a_gpu_worker_has_none(
        self, monkeypatch: pytest.MonkeyPatch, visible: str, problem: str | None
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        Nvml(two()).install(monkeypatch)
        [cpu] = devices.devices()
        assert (cpu["type"], cpu.get("problem")) == ("cpu", problem)


class TestFields:
    def test_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        Nvml(two(), driver="580.82.07").install(monkeypatch)
        gpu = {
            "type": "cuda",
            "index": 0,
            "uuid": "GPU-b1",
            "name": "second",
            "memory_bytes": 2048,
            "compute_capability": "7.5",
            "driver_version": "580.82.07",
            "mig": False,
        }
        assert devices.devices() == devices.gpus() == [gpu]

    @pytest.mark.parametrize(
        ("function", "field", "instead"),
        [
            ("nvmlDeviceGetName", "name", "NVIDIA GPU"),
            ("nvmlDeviceGetMemoryInfo", "memory_bytes", None),
            ("nvmlDeviceGetCudaComputeCapability", "compute_capability", None),
            ("nvmlDeviceGetMigMode", "mig", False),
        ],
    )
    @pytest.mark.parametrize("code", [NOT_SUPPORTED, NO_PERMISSION, LOST])
    def test_one_that_cannot_be_read_changes_no_other(
        self, monkeypatch: pytest.MonkeyPatch, function: str, field: str, instead: Any, code: int
    ) -> None:
        Nvml(two()).install(monkeypatch)
        expected = devices.gpus()
        expected[0][field] = instead
        gpus = two()
        gpus[0].errors[function] = code
        Nvml(gpus).install(monkeypatch)
        assert devices.gpus() == expected

    def test_of_the_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml(two(), errors={"nvmlSystemGetDriverVersion": NOT_SUPPORTED}).install(monkeypatch)
        assert [gpu["driver_version"] for gpu in devices.gpus()] == [None, None]

    @pytest.mark.parametrize(
        ("function", "problem"),
        [
            ("nvmlDeviceGetUUID", "NVML does not report the UUID of first"),
            ("nvmlDeviceGetHandleByIndex", "GPU 0 does not answer: GPU is lost"),
        ],
    )
    def test_a_gpu_without_a_uuid_is_for_no_job(
        self, monkeypatch: pytest.MonkeyPatch, function: str, problem: str
    ) -> None:
        gpus = two()
        gpus[0].errors[function] = LOST
        Nvml(gpus).install(monkeypatch)
        with capture_logs() as logs:
            assert uuids(devices.gpus()) == ["GPU-b1"]
        assert [entry["problem"] for entry in logs if entry["log_level"] == "warning"] == [problem]
        shown = devices.devices()
        assert uuids(shown) == [None, "GPU-b1"]
        assert shown[0]["problem"] == problem


class TestMig:
    def test_instances_in_the_place_of_the_gpu(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml(cut_and_whole()).install(monkeypatch)
        found = devices.gpus()
        assert uuids(found) == ["MIG-1", "MIG-2", "GPU-whole"]
        assert [gpu["mig"] for gpu in found] == [True, True, False]
        assert [gpu["memory_bytes"] for gpu in found] == [10 * GIB, 40 * GIB, 80 * GIB]
        assert {gpu["compute_capability"] for gpu in found} == {"8.0"}

    @pytest.mark.parametrize(
        ("visible", "found"),
        [
            ("0", ["MIG-1", "MIG-2"]),
            ("GPU-cut", ["MIG-1", "MIG-2"]),
            ("MIG-2,1", ["MIG-2", "GPU-whole"]),
            ("MIG-", []),
        ],
    )
    def test_visible_ones(
        self, monkeypatch: pytest.MonkeyPatch, visible: str, found: list[str]
    ) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        Nvml(cut_and_whole()).install(monkeypatch)
        assert uuids(devices.gpus()) == found

    def test_a_mode_that_is_on_without_an_instance(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([Gpu("GPU-cut", name="A100").cut(None)]).install(monkeypatch)
        assert devices.gpus() == []
        gpu, cpu = devices.devices()
        assert (gpu["name"], gpu["uuid"]) == ("A100", None)
        assert gpu["problem"].startswith("GPU 0 is in MIG mode and has no instance")
        assert cpu["type"] == "cpu"

    @pytest.mark.parametrize(
        ("visible", "most"), [(None, 1), ("0", 1), ("MIG-1,MIG-2", 1), ("", 0)]
    )
    def test_a_job_has_one_instance_at_most(
        self, monkeypatch: pytest.MonkeyPatch, visible: str | None, most: int
    ) -> None:
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        Nvml(cut_and_whole()).install(monkeypatch)
        assert most_for_one_job(devices.gpus()) == most

    def test_a_job_has_all_whole_gpus(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml([*two(), *cut_and_whole()]).install(monkeypatch)
        assert most_for_one_job(devices.gpus()) == 3


class TestNvmlThatDoesNotWork:
    @pytest.mark.parametrize(
        "code", [pynvml.NVML_ERROR_LIBRARY_NOT_FOUND, pynvml.NVML_ERROR_DRIVER_NOT_LOADED]
    )
    def test_a_machine_without_a_gpu(self, monkeypatch: pytest.MonkeyPatch, code: int) -> None:
        Nvml(init_error=code).install(monkeypatch)
        with capture_logs() as logs:
            assert devices.gpus() == []
        [cpu] = devices.devices()
        assert set(cpu) == {"type", "name", "cores"}
        assert cpu["type"] == "cpu"
        assert cpu["name"]
        assert cpu["cores"] >= 1
        assert logs == []

    @pytest.mark.parametrize(
        "code", [pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH, NO_PERMISSION, LOST]
    )
    @pytest.mark.parametrize("function", ["nvmlInit", "nvmlDeviceGetCount"])
    def test_gives_the_reason(
        self, monkeypatch: pytest.MonkeyPatch, function: str, code: int
    ) -> None:
        in_init = code if function == "nvmlInit" else None
        Nvml(two(), init_error=in_init, errors={function: code}).install(monkeypatch)
        why = f"NVML does not work: {pynvml.NVMLError(code)}"
        with capture_logs() as logs:
            assert devices.gpus() == []
        assert [(entry["log_level"], entry["problem"]) for entry in logs] == [("warning", why)]
        [cpu] = devices.devices()
        assert (cpu["type"], cpu["problem"]) == ("cpu", why)
