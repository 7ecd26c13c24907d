import os
import subprocess
import tempfile
from pathlib import Path

import pytest

from worker.processes.private_folder import private_folder


@pytest.fixture(autouse=True)
def _here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))


def test_only_its_user_can_enter_it_and_it_is_removed(tmp_path: Path) -> None:
    with private_folder() as folder:
        assert folder.parent == tmp_path
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "closed").mkdir()
        (folder / "closed" / "file").touch()
        (folder / "closed").chmod(0)
        (folder / "link").symlink_to(tmp_path / "kept")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("processes")
def test_a_tree_of_any_depth_is_removed(tmp_path: Path) -> None:
    with private_folder() as folder:
        made = "import os\nfor _ in range(3000):\n    os.mkdir('d'); os.chdir('d')\n"
        subprocess.run(["python3", "-c", made], cwd=folder, check=True)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.usefixtures("processes")
def test_what_a_killed_worker_left_is_removed_by_the_next(tmp_path: Path) -> None:
    ended = subprocess.Popen(["true"])
    ended.wait()
    left, used, other = (
        tmp_path / f"finetune-stage-{pid}-x" for pid in (ended.pid, os.getpid(), "many")
    )
    for folder in (left, used, other):
        folder.mkdir()
    with private_folder():
        assert not left.exists()
    assert used.exists()
    assert other.exists()
