from typing import Any

import pynvml
import pytest

from worker import devices


class Driver:
    """NVML of a machine with two GPUs, where the test's machine has none."""

    def nvmlInit(self) -> None: ...

    def nvmlShutdown(self) -> None: ...

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> int:
        return index

    def nvmlDeviceGetHandleByUUID(self, name: str) -> int:
        if name != "GPU-second":
            raise pynvml.NVMLError(pynvml.NVML_ERROR_NOT_FOUND)
        return 1

    def nvmlDeviceGetName(self, handle: int) -> str:
        return ["first", "second"][handle]

    def nvmlDeviceGetMemoryInfo(self, handle: int) -> Any:
        return type("Memory", (), {"total": (handle + 1) * 1024})


@pytest.fixture
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    driver = Driver()
    for name in dir(Driver):
        if name.startswith("nvml"):
            monkeypatch.setattr(pynvml, name, getattr(driver, name))


class TestGpus:
    @pytest.mark.usefixtures("_driver")
    @pytest.mark.parametrize(
        ("visible", "names"),
        [
            (None, ["first", "second"]),
            ("", []),
            ("-1", []),
            ("1", ["second"]),
            ("1,0", ["second", "first"]),
            ("0,7,1", ["first"]),
            ("GPU-second", ["second"]),
            ("GPU-other,0", []),
        ],
    )
    def test_what_cuda_would_show(
        self, monkeypatch: pytest.MonkeyPatch, visible: str | None, names: list[str]
    ) -> None:
        monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
        if visible is not None:
            monkeypatch.setenv("CUDA_VISIBLE_DEVICES", visible)
        found = devices.gpus()
        assert [gpu["name"] for gpu in found] == names
        assert [gpu["index"] for gpu in found] == list(range(len(names)))

    @pytest.mark.usefixtures("_driver")
    def test_description(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "1")
        gpu = {"type": "cuda", "index": 0, "name": "second", "memory_bytes": 2048}
        assert devices.devices() == [gpu]

    def test_no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def no_driver() -> None:
            raise pynvml.NVMLError(pynvml.NVML_ERROR_LIBRARY_NOT_FOUND)

        monkeypatch.setattr(pynvml, "nvmlInit", no_driver)
        [cpu] = devices.devices()
        assert cpu["type"] == "cpu"
        assert cpu["name"]
        assert cpu["cores"] >= 1
