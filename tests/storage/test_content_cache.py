import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

from worker.storage import content_cache

COUNTS = {"train": {"examples": 1}}


def build(folder: Path) -> content_cache.Counts:
    (folder / "data").write_text("x")
    return COUNTS


class TestAddress:
    def test_depends_on_every_part_and_not_on_their_order(self) -> None:
        one = content_cache.address({"a": 1, "b": ["é"]})
        assert one == content_cache.address({"b": ["é"], "a": 1})
        assert one != content_cache.address({"a": 1, "b": ["e"]})
        assert len(one) == 64


class TestGetOrBuild:
    def test_builds_once_and_finds_it_then(self, tmp_path: Path) -> None:
        first = content_cache.get_or_build(tmp_path, "k", build)
        second = content_cache.get_or_build(tmp_path, "k", _never)
        assert (first.found, second.found) == (False, True)
        assert first.folder == second.folder == tmp_path / "k"
        assert first.splits == second.splits == COUNTS

    def test_a_failed_build_leaves_nothing(self, tmp_path: Path) -> None:
        with pytest.raises(AssertionError):
            content_cache.get_or_build(tmp_path, "k", _never)
        assert [path.name for path in tmp_path.iterdir()] == ["k.lock"]
        assert not content_cache.get_or_build(tmp_path, "k", build).found

    def test_a_damaged_entry_is_built_again(self, tmp_path: Path) -> None:
        content_cache.get_or_build(tmp_path, "k", build)
        (tmp_path / "k" / "data").write_text("y")
        assert not content_cache.get_or_build(tmp_path, "k", build).found
        assert (tmp_path / "k" / "data").read_text() == "x"

    @pytest.mark.usefixtures("processes")
    def test_of_two_processes_one_builds_and_the_other_waits(self, tmp_path: Path) -> None:
        outputs = [child.communicate()[0] for child in [_child(tmp_path, 0.5) for _ in range(3)]]
        assert sorted(outputs) == ["False\n", "True\n", "True\n"]

    @pytest.mark.usefixtures("processes")
    def test_a_killed_builder_leaves_the_work_to_the_next(self, tmp_path: Path) -> None:
        child = _child(tmp_path, 60)
        while not (tmp_path / "k.tmp" / "started").exists():
            time.sleep(0.01)
        child.kill()
        child.communicate()
        assert not content_cache.get_or_build(tmp_path, "k", build).found
        assert {path.name for path in tmp_path.iterdir()} == {"k", "k.lock"}


def _never(_folder: Path) -> content_cache.Counts:
    raise AssertionError


_CHILD = """
import sys, time
from pathlib import Path
from worker.storage import content_cache
def build(folder):
    (folder / "started").touch()
    time.sleep(float(sys.argv[2]))
    return {}
print(content_cache.get_or_build(Path(sys.argv[1]), "k", build).found)
"""


def _child(folder: Path, seconds: float) -> "subprocess.Popen[str]":
    return subprocess.Popen(
        [sys.executable, "-c", _CHILD, str(folder), str(seconds)],
        stdout=subprocess.PIPE,
        text=True,
        env=dict(os.environ),
    )
