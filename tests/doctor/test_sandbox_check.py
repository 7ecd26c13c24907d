"""What `finetune doctor` reports about the sandbox."""

from pathlib import Path

import pytest

from worker.doctor.check import Context
from worker.doctor.checks import stages
from worker.sandbox import layers
from worker.sandbox.view import Layer
from worker.supervision.limits import delegated_group
from worker.supervision.limits.delegated_group import NoGroupsError


@pytest.mark.usefixtures("processes")
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
    found = stages.sandbox(Context(scratch=tmp_path))
    assert found.status == status
    assert ("send UDP" in found.reason) == (status in ("warning", "failed"))


@pytest.mark.parametrize("has_groups", [True, False])
def test_what_holds_the_limits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_groups: bool
) -> None:
    def find() -> Path:
        if not has_groups:
            raise NoGroupsError("the worker's control group is threaded")
        return tmp_path / "groups"

    monkeypatch.setattr(delegated_group, "find", find)
    found = stages.limits(Context(scratch=tmp_path))
    assert (found.status, found.data) == ("ok", {"control_groups": has_groups})
    assert ("the kernel holds" in found.summary) == has_groups
    assert ("group is threaded" in found.summary) == (not has_groups)
