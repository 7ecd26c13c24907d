"""A stage that attacks: it tries everything that a confined stage must not be able to do.

`metadata` names its targets: `hostile.pid` (a process of the same user), `hostile.tcp` and
`hostile.udp` (ports), `hostile.abstract` and `hostile.socket` (unix sockets), `hostile.secret` (a
text that must not be found). What succeeded is in `<attempt>/successes.json`; the lies below that
`hostile.lie` names follow.
"""

import ctypes
import json
import os
import socket
import sqlite3
import sys
import time
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from pathlib import Path

from pydantic import BaseModel

from service.contract.stage.events import (
    ArtifactWritten,
    CheckpointSaved,
    Metric,
    Notice,
    ReadyToCommit,
    StageEvent,
)
from service.contract.stage.stages import EVENT_FD_VARIABLE, StageRequest
from tests.support.stages import stage
from worker.stages.base import Channel, run_stage

_LIBC = ctypes.CDLL(None, use_errno=True)
_PTRACE_SEIZE, _PTRACE_ATTACH = 0x4206, 16
_NEW_USER, _NEW_MOUNTS, _MS_BIND = 0x10000000, 0x20000, 0x1000
_OVERHEARD = 5
FLOOD = 20_000
_ENDED = ("link", "outside", "checkpoint", "step", "permission")
"""The lies for which the supervisor ends it."""
_EVENTS: Mapping[str, StageEvent] = {
    "step": Metric(kind="train", step=2**31, values={}),
    "permission": ReadyToCommit(),
    "nul": Notice(message="before\0after", data={"\0": ["\0"]}),
}


class Attack:
    """Every method is an attack; it returns what it got, and nothing if it got nothing."""

    def __init__(self, request: StageRequest) -> None:
        self.request = request
        self.home = request.workspace.parents[1]
        self.target: Mapping[str, str] = request.spec.metadata
        self.pid = int(self.target["hostile.pid"])

    # ---- files ----

    def read_home(self) -> list[str]:
        """Another job's folder, the database, the broker's password, keys, uploads."""
        return [str(path) for path in self.home.rglob("*") if self._is_foreign(path)]

    def _is_foreign(self, path: Path) -> object:
        is_ours = path.is_relative_to(self.request.workspace) or "cache" in path.parts
        return not is_ours and path.is_file() and bool(path.read_bytes()[:1])

    def read_by_name(self) -> list[str]:
        """As above, without listing folders."""
        names = ("finetune.db", "valkey/valkey.conf", "keys/up", "jobs/job-b/job.log")
        return _read(self.home / name for name in (*names, "files/file-b"))

    def read_users_files(self) -> list[str]:
        names = ("/etc/shadow", "/root/.bashrc", "/root/.netrc", "/root/.profile", "/etc/hostname")
        return _read(Path(name) for name in names)

    def insert_key(self) -> object:
        def insert() -> object:
            with sqlite3.connect(self.home / "finetune.db", timeout=1) as database:
                database.execute("insert into hostile values ('key')")
            return True

        return _tried(insert)

    def write_foreign(self) -> list[str]:
        places = [
            self.home / "jobs" / "job-b" / "job.log",
            self.home / "planted",
            self.home / "files" / "planted",
            self.request.workspace / "planted",
            self.request.workspace / "job.log",
            Path(sys.prefix) / "planted.pth",
            Path(stage.__file__).with_name("planted.py"),
            Path("/tmp/planted-by-a-stage"),
            Path("/proc/sys/kernel/core_pattern"),
        ]
        return [str(path) for path in places if _tried(partial(_append, path))]

    def write_through_link(self) -> object:
        """A file that it may only read would be written under the name of a hard link."""
        other = self.request.attempt_dir / "linked"

        def link() -> object:
            os.link(self.request.workspace / "attempts" / "1" / "request.json", other)
            return _append(other)

        return self.request.epoch > 1 and _tried(link)

    def replace_log(self) -> object:
        log = self.request.workspace / "job.log"

        def replace() -> object:
            log.unlink()
            log.symlink_to(self.home / "finetune.db")
            return True

        return _tried(replace)

    def bind_mount(self) -> object:
        """In a user namespace of its own it would have every power over its mounts."""
        child = os.fork()
        if child == 0:
            inside = self.request.attempt_dir / "mounted"
            inside.mkdir(exist_ok=True)
            _LIBC.unshare(_NEW_USER | _NEW_MOUNTS)
            source = str(self.home).encode()
            done = _LIBC.mount(source, str(inside).encode(), None, ctypes.c_ulong(_MS_BIND), None)
            os._exit(0 if done == 0 and any(inside.iterdir()) else 1)
        return os.waitpid(child, 0)[1] == 0

    # ---- other processes ----

    def read_environments(self) -> list[str]:
        secret = self.target["hostile.secret"].encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            data = _tried(path.read_bytes)
            if isinstance(data, bytes) and secret in data:
                found.append(str(path))
        return found

    def read_by_pid(self) -> list[str]:
        names = ("environ", "maps", "mem", "fd/0", "cwd/.", "root/etc/hostname")
        return _read(Path(f"/proc/{self.pid}/{name}") for name in names)

    def trace(self) -> object:
        seized = _LIBC.ptrace(_PTRACE_SEIZE, self.pid, None, None) == 0
        return seized or _LIBC.ptrace(_PTRACE_ATTACH, self.pid, None, None) == 0

    def signal(self) -> list[int]:
        pids = {self.pid, os.getppid(), 1} - {0}
        outside = [pid for pid in pids if pid == self.pid]
        return [pid for pid in outside if _tried(partial(_is_reachable, pid))]

    # ---- network ----

    def connect(self) -> object:
        return _tried(lambda: socket.create_connection(("127.0.0.1", self._port("tcp")), 2))

    def listen(self) -> object:
        """On an address that another machine could reach."""
        with socket.socket() as server, socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
            if not _tried(lambda: server.bind(("0.0.0.0", 0)) or 1):
                return False
            return _tried(lambda: probe.connect(("192.0.2.1", 9)) or 1)

    def send_datagram(self) -> object:
        """The receiver counts it; here it only must not fail the stage."""
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sender:
            _tried(lambda: sender.sendto(b"from a stage", ("127.0.0.1", self._port("udp"))))
        return False

    def raw_socket(self) -> object:
        return _tried(lambda: socket.socket(socket.AF_INET, socket.SOCK_RAW, socket.IPPROTO_ICMP))

    def abstract_socket(self) -> object:
        name = "\0" + self.target["hostile.abstract"]
        return _tried(lambda: socket.socket(socket.AF_UNIX).connect(name) or 1)

    def path_socket(self) -> object:
        path = self.target["hostile.socket"]
        return _tried(lambda: socket.socket(socket.AF_UNIX).connect(path) or 1)

    def _port(self, kind: str) -> int:
        return int(self.target[f"hostile.{kind}"])

    # ---- what stays ----

    def outlive(self) -> object:
        """A grandchild in a session of its own; the test looks whether it still runs."""
        if os.fork() == 0:
            os.setsid()
            if os.fork() == 0:
                (self.request.attempt_dir / "outliving").write_text("started")
                time.sleep(600)
            os._exit(0)
        return False


def _is_reachable(pid: int) -> bool:
    os.kill(pid, 0)
    return True


def _append(path: Path) -> bool:
    path.open("ab").close()
    return True


def _begin(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(1)


def _read(paths: Iterable[Path]) -> list[str]:
    return [str(path) for path in paths if _tried(partial(_begin, path))]


def _tried(action: Callable[[], object]) -> object:
    try:
        return action()
    except (OSError, sqlite3.Error):
        return False


def main(request: StageRequest, channel: Channel) -> BaseModel:
    attack = Attack(request)
    names = [name for name in vars(Attack) if not name.startswith("_")]
    successes = {name: got for name in names if (got := getattr(attack, name)())}
    (request.attempt_dir / "successes.json").write_text(
        json.dumps({"tried": names, "successes": successes}, default=str)
    )
    lie = request.spec.metadata.get("hostile.lie")
    for kind in lie.split() if lie is not None else ():
        _lie(kind, request, channel)
    return stage.result(request)


def _lie(kind: str, request: StageRequest, channel: Channel) -> None:
    pipe = int(os.environ[EVENT_FD_VARIABLE])
    link = request.attempt_dir / "link"
    artifact = ArtifactWritten(name="a", path="", bytes=1, sha256="0" * 64)
    match kind:
        case "step" | "permission" | "nul":
            channel.send(_EVENTS[kind])
        case "link":
            link.symlink_to(request.workspace.parents[1] / "finetune.db")
            path = str(link.relative_to(request.workspace))
            channel.send(artifact.model_copy(update={"path": path}))
        case "outside":
            channel.send(artifact.model_copy(update={"path": "../job-b/job.log"}))
        case "checkpoint":
            checkpoint = {"step": 1, "bytes": 1, "manifest_sha256": "0" * 64}
            channel.send(CheckpointSaved.model_validate({**checkpoint, "path": "attempts/../.."}))
        case "long-line":
            for _ in range(64):
                os.write(pipe, b"x" * 1024**2)
            os.write(pipe, b"\n")
        case "numbers":
            values = {"loss": float("nan"), "f1": float("inf")}
            channel.send(Metric(kind="train", step=1, values=values))
            os.write(pipe, b'{"type": "metric", "kind": "train", "step": 1e400, "values": {}}\n')
            os.write(pipe, b'{"type": "progress", "step": -1, "of": 99999999999999999999}\n')
        case "flood":
            for number in range(FLOOD):
                channel.send(Notice(message=f"{number}"))
    time.sleep(_OVERHEARD if kind in _ENDED else 0)


def command(request: StageRequest, request_file: Path) -> list[str]:
    return [sys.executable, "-P", str(Path(__file__)), str(request_file)]


if __name__ == "__main__":
    run_stage(main)
