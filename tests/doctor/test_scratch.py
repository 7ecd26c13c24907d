"""Where the checks write, and what killed runs have left there."""

from pathlib import Path

import pytest

from service.system import locked_folder
from worker.doctor import scratch


def test_what_killed_runs_have_left_is_removed(tmp_path: Path) -> None:
    root = tmp_path / "doctor"
    killed, running, new = (root / f"run-{name}" for name in ("killed", "running", "new"))
    for folder in (killed, running):
        (folder / "jobs").mkdir(parents=True)
    new.mkdir()  # by a run that has not locked it yet
    with locked_folder.if_free(running), scratch.folder(tmp_path) as own:
        assert own.parent == root
        assert list(own.iterdir()) == []
        assert {*root.iterdir()} == {running, new, own}
        with locked_folder.if_free(own) as is_free:
            assert not is_free
    assert {*root.iterdir()} == {running, new}


def test_without_a_writable_home_it_is_a_temporary_folder(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "doctor").write_text("a file")
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with scratch.folder(tmp_path) as own:
        assert own.is_dir()
        assert own.parent == tmp_path
    assert not own.exists()
