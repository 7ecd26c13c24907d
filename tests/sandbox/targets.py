"""What a hostile stage aims at: a home with secrets, and a process and sockets of the same user."""

import os
import socket
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

BOTH = "landlock,namespaces"
OPEN: dict[str, set[str]] = {
    BOTH: set(),
    "namespaces": set(),
    "landlock": {"path_socket", "listen", "raw_socket"},
}
"""What Landlock alone leaves open, and the job's notice names; methods of the hostile stage."""
SECRET = "not-for-stages"
_VICTIM = "import sys; print(1, flush=True); sys.stdin.read()"


@dataclass
class Targets:
    metadata: dict[str, str]
    heard: list[bytes] = field(default_factory=list)
    """What arrived at one of the sockets."""


@contextmanager
def targets(home: Path) -> Iterator[Targets]:
    """Under `home` the files of another job, of the broker, keys, an upload."""
    for name in ("valkey/valkey.conf", "keys/up", "jobs/job-b/job.log", "files/file-b"):
        path = home / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(SECRET)
    with ExitStack() as stack:
        victim = stack.enter_context(_process())
        # Not in `tmp_path`: a socket's path has at most 108 characters.
        short = stack.enter_context(tempfile.TemporaryDirectory(prefix="finetune-victim-"))
        found = Targets({"hostile.pid": str(victim), "hostile.secret": SECRET})
        kinds: dict[str, tuple[int, socket.SocketKind, Any]] = {
            "tcp": (socket.AF_INET, socket.SOCK_STREAM, ("127.0.0.1", 0)),
            "udp": (socket.AF_INET, socket.SOCK_DGRAM, ("127.0.0.1", 0)),
            "abstract": (socket.AF_UNIX, socket.SOCK_STREAM, f"\0finetune-{victim}"),
            "socket": (socket.AF_UNIX, socket.SOCK_STREAM, f"{short}/socket"),
        }
        for name, (family, kind, address) in kinds.items():
            server = stack.enter_context(socket.socket(family, kind))
            server.bind(address)
            if kind == socket.SOCK_STREAM:
                server.listen()
            _listen(server, kind, found.heard)
            own = server.getsockname()
            text = own[1] if family == socket.AF_INET else own
            if isinstance(text, bytes):
                text = text[1:].decode()
            found.metadata[f"hostile.{name}"] = str(text)
        yield found


@contextmanager
def _process() -> Iterator[int]:
    with subprocess.Popen(
        [sys.executable, "-c", _VICTIM],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env={**os.environ, "FINETUNE_HUB_TOKEN": SECRET},
    ) as process:
        assert process.stdout is not None
        process.stdout.readline()
        yield process.pid
        assert process.poll() is None, "the stage has ended another process"
        process.kill()


def _listen(server: socket.socket, kind: socket.SocketKind, heard: list[bytes]) -> None:
    def run() -> None:
        try:
            while True:
                if kind == socket.SOCK_DGRAM:
                    heard.append(server.recv(1024))
                else:
                    with server.accept()[0]:
                        heard.append(b"a connection")
        except OSError:  # closed
            return

    threading.Thread(target=run, daemon=True).start()
