"""What `finetune doctor` says about the sandbox."""

from pathlib import Path

import pytest

from worker.doctor.check import Context
from worker.doctor.checks import sandbox
from worker.sandbox import layers
from worker.sandbox.view import Layer


@pytest.mark.parametrize(
    ("mode", "used", "status"),
    [
        ("auto", tuple(Layer), "ok"),
        ("auto", (Layer.LANDLOCK,), "warning"),
        ("require", (), "failed"),
        ("off", (), "not_run"),
    ],
)
def test_each_gap_is_named(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    mode: str,
    used: tuple[Layer, ...],
    status: str,
) -> None:
    monkeypatch.setenv("FINETUNE_SANDBOX", mode)
    monkeypatch.setattr(layers, "used", lambda _: used)
    monkeypatch.setattr("worker.sandbox.landlock.version", lambda: 7)
    found = sandbox.sandbox(Context(scratch=tmp_path))
    assert found.status == status
    assert ("send UDP" in found.reason) == (status in ("warning", "failed"))
