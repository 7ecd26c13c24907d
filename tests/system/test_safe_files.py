"""Files that a stage may have replaced."""

import os
from pathlib import Path

import pytest

from service.system.safe_files import is_inside, open_inside


@pytest.fixture
def root(tmp_path: Path) -> Path:
    (tmp_path / "secret").write_text("secret")
    (tmp_path / "outside").mkdir()
    (tmp_path / "outside" / "file").write_text("secret")
    root = tmp_path / "root"
    (root / "a" / "b").mkdir(parents=True)
    (root / "a" / "b" / "file").write_text("content")
    return root


def test_a_regular_file_is_opened(root: Path) -> None:
    with open_inside(root, "a/b/file") as file:
        assert file.read() == b"content"


@pytest.mark.parametrize(
    "path", ["../secret", "a/../../secret", "/etc/passwd", "", ".", "a", "a/missing", "a/b/file/x"]
)
def test_a_path_that_leads_elsewhere_is_refused(root: Path, path: str) -> None:
    assert not is_inside(root, path)


def test_links_are_refused_at_every_place(root: Path) -> None:
    (root / "link").symlink_to(root.parent / "secret")
    (root / "folder").symlink_to(root.parent / "outside")
    (root / "own").symlink_to(root / "a" / "b" / "file")
    for path in ("link", "folder/file", "own"):
        assert not is_inside(root, path)


def test_a_pipe_does_not_block(root: Path) -> None:
    os.mkfifo(root / "pipe")
    assert not is_inside(root, "pipe")
