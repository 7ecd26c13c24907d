"""Folders that look like control groups."""

import os
from collections.abc import Sequence
from pathlib import Path

import pytest

from worker.supervision.limits.delegated_group import System


class FakeSystem:
    """One cgroup v2 mount in `folder`; the group `""` is its root."""

    def __init__(self, folder: Path) -> None:
        self.system = System(folder / "proc", folder / "systemd")
        self._mount = folder / "cgroup"
        (folder / "proc/self").mkdir(parents=True)
        self._mount.mkdir()
        (self._mount / "cgroup.procs").touch()

    def proc(self, name: str, text: str) -> None:
        (self.system.proc / "self" / name).write_text(text)

    def group(self, name: str, *, processes: Sequence[int] = (), enabled: str = "") -> Path:
        folder = self._mount / name
        folder.mkdir()
        for file, text in (
            ("cgroup.type", "domain\n"),
            ("cgroup.controllers", "cpu memory pids\n"),
            ("cgroup.subtree_control", enabled),
            ("cgroup.procs", "".join(f"{pid}\n" for pid in processes)),
        ):
            (folder / file).write_text(text)
        return folder

    def place(self, group: Path) -> None:
        """This process is in it."""
        self.proc("cgroup", f"0::/{group.relative_to(self._mount)}\n")
        mount = f"25 20 0:22 / {self._mount} rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n"
        self.proc("mountinfo", f"20 1 0:20 / / rw - ext4 /dev/root rw\n{mount}")

    def delegate(self, group: Path) -> None:
        try:
            os.setxattr(group, "user.delegate", b"1")
        except OSError as error:
            pytest.skip(f"no extended attributes here: {error}")
