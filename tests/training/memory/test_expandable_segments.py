"""Expandable segments, with torch's own settings and a device that answers."""

import platform
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from worker.training.memory import expandable_segments
from worker.training.memory.expandable_segments import OPERATORS, enable, enabled

CUDA = torch.device("cuda")


@pytest.fixture(autouse=True)
def plain(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in OPERATORS:
        monkeypatch.delenv(name, raising=False)
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")
    yield
    torch._C._accelerator_setAllocatorSettings("expandable_segments:False")


@pytest.fixture
def tried(monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """What was set when a number was put on the device."""
    seen: list[bool] = []

    def ones(*_: Any, **__: Any) -> torch.Tensor:
        seen.append(enabled())
        return torch.zeros(1)

    monkeypatch.setattr(torch, "ones", ones)
    return seen


class TestEnable:
    def test_on_a_gpu_before_anything_is_there(self, tried: list[bool]) -> None:
        enable(CUDA)
        assert enabled()
        assert tried == [True]

    def test_not_on_a_cpu(self, tried: list[bool]) -> None:
        enable(torch.device("cpu"))
        assert not enabled()
        assert tried == []

    @pytest.mark.parametrize("name", OPERATORS)
    def test_the_operator_decides(
        self, tried: list[bool], monkeypatch: pytest.MonkeyPatch, name: str
    ) -> None:
        monkeypatch.setenv(name, "max_split_size_mb:64")
        enable(CUDA)
        assert not enabled()
        assert tried == []

    def test_off_where_the_driver_cannot(
        self, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        def ones(*_: Any, **__: Any) -> torch.Tensor:
            raise RuntimeError("CUDA driver error: operation not supported\nat cuMemCreate")

        monkeypatch.setattr(torch, "ones", ones)
        enable(CUDA)
        assert not enabled()
        assert caplog.messages == [
            "expandable_segments.unsupported reason=CUDA driver error: operation not supported"
        ]

    @pytest.mark.parametrize("release", ["5.15.153.1-microsoft-standard-WSL2", "5.15.148-tegra"])
    def test_not_tried_where_it_is_known_to_fail(
        self, tried: list[bool], monkeypatch: pytest.MonkeyPatch, release: str
    ) -> None:
        monkeypatch.setattr(platform, "release", lambda: release)
        enable(CUDA)
        assert not enabled()
        assert tried == []

    def test_not_on_a_jetson_in_a_container(
        self, tried: list[bool], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "nv_tegra_release").touch()
        monkeypatch.setattr(expandable_segments, "_TEGRA", tmp_path / "nv_tegra_release")
        enable(CUDA)
        assert not enabled()
        assert tried == []
