"""Links that a stage puts in place of what a later stage is shown."""

import subprocess
import sys
from pathlib import Path

import pytest

from worker.sandbox import machine
from worker.sandbox.confined_command import confined
from worker.sandbox.view import Layer, View

_PROGRAM = """
import sys
for path in sys.argv[1:]:
    try:
        print(open(path).read())
    except OSError:
        print("-")
"""


def seen(view: View, *paths: Path) -> list[str]:
    command = [sys.executable, "-I", "-S", "-c", _PROGRAM, *map(str, paths)]
    with confined(command, view) as (words, descriptors):
        done = subprocess.run(
            words, pass_fds=descriptors, capture_output=True, text=True, cwd="/", check=True
        )
    return done.stdout.split()


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a link in its name, as an operator may have, and one that a stage has made. The first
    leads past the root folder, where its parent is the root folder itself."""
    disk = tmp_path / "disk"
    for name in ("jobs/job-a/checkpoint", "jobs/job-b/output", "keys"):
        (disk / name).mkdir(parents=True)
        (disk / name / "file").write_text(name)
    (disk / "jobs" / "job-b" / "checkpoint").symlink_to(disk / "keys")
    home = tmp_path / "home"
    home.symlink_to("../" * 30 + str(disk.relative_to("/")))
    return home


def test_a_link_that_a_stage_has_made_is_not_followed(layer: Layer, home: Path) -> None:
    names = ("jobs/job-a/checkpoint", "jobs/job-b/output", "jobs/job-b/checkpoint")
    for guarded, planted in (((home / "jobs",), "-"), ((), "keys")):
        view = View(
            (layer,),
            read=(*machine.readable({}), *(home / name for name in names)),
            devices=machine.devices(with_gpus=False),
            guarded=guarded,
        )
        files = [home / name / "file" for name in (*names, "keys")]
        assert seen(view, *files) == [names[0], names[1], planted, planted]
