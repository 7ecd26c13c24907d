"""Servers that every process of one test run shares.

The first process that needs one starts it; the process that named the folder ends them all.
"""

import atexit
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final

import psutil

_VARIABLE: Final = "FINETUNE_TEST_SERVERS"
_END_SECONDS: Final = 30.0

Start = Callable[[Path], tuple[str, int]]
"""Starts a server in that folder, as the leader of a process group; its URL and process id."""


def folder() -> Path:
    """The folder of this run's servers; child processes inherit it."""
    if _VARIABLE not in os.environ:
        made = Path(tempfile.mkdtemp(prefix="finetune-servers-"))
        made.chmod(0o755)  # Postgres reads its data as another user
        os.environ[_VARIABLE] = str(made)
        atexit.register(_end_all, made)
    return Path(os.environ[_VARIABLE])


def url_of(name: str, start: Start) -> str:
    """URL of the run's server of that name, which is started if it is not running."""
    sys.audit("shared_servers.url_of", name)  # also where another test has started it
    record = folder() / f"{name}.json"
    with (folder() / f"{name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not record.exists():
            data = folder() / name
            data.mkdir(exist_ok=True)
            url, pid = start(data)
            record.write_text(json.dumps({"url": url, "pid": pid}))
        return str(json.loads(record.read_text())["url"])


def leave(process: subprocess.Popen[bytes]) -> int:
    """The id of a server's process that this one neither waits for nor warns about."""
    process.returncode = 0
    return process.pid


def _end_all(folder: Path) -> None:
    """By the process that made the folder, whichever started them."""
    for record in folder.glob("*.json"):
        pid = json.loads(record.read_text())["pid"]
        with suppress(psutil.NoSuchProcess, ProcessLookupError):
            os.killpg(pid, signal.SIGINT)  # Postgres then does not wait for its clients
            with suppress(psutil.TimeoutExpired):
                psutil.Process(pid).wait(_END_SECONDS)
            os.killpg(pid, signal.SIGKILL)
    shutil.rmtree(folder, ignore_errors=True)
