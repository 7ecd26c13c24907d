import pynvml
import pytest

from tests.fakes.nvml import Gpu, Nvml
from worker import devices


@pytest.fixture
def _driver(monkeypatch: pytest.MonkeyPatch) -> None:
    first = Gpu("GPU-first", name="first", memory_bytes=1024)
    Nvml([first, Gpu("GPU-second", name="second", memory_bytes=2048)]).install(monkeypatch)


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
        assert devices.devices() == [gpu | {"uuid": "GPU-second"}]

    def test_no_driver(self, monkeypatch: pytest.MonkeyPatch) -> None:
        Nvml(init_error=pynvml.NVML_ERROR_LIBRARY_NOT_FOUND).install(monkeypatch)
        [cpu] = devices.devices()
        assert cpu["type"] == "cpu"
        assert cpu["name"]
        assert cpu["cores"] >= 1
