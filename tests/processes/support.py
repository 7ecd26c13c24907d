"""Helpers that start stages as children of this process and inspect them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from service.contract.stage.events import StageEvent
from tests.support.stages import request as stub_request
from worker.processes.child import Child
from worker.processes.fork_client import ForkClient
from worker.processes.spawn import Start

ROOT = Path(__file__).resolve().parents[2]


STUB, STATE = "tests.support.stages.stage", "tests.support.stages.state_stage"
_ENDED = "0"
"""The stack of a process without memory."""


def environment(**more: str) -> dict[str, str]:
    kept = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
    return {
        **kept,
        "PYTHONPATH": str(ROOT),
        "PYTHONUNBUFFERED": "1",
        "OMP_NUM_THREADS": "1",
        **more,
    }


def command(request: Path, module: str = STUB) -> list[str]:
    return [sys.executable, "-P", "-m", module, str(request)]


def begin(folder: Path, behaviour: str, start: Start, module: str = STUB, **more: str) -> Child:
    """`more`: variables; HF_TOKEN is given as the secret that it is."""
    request = stub_request.write(folder, behaviour)
    secrets = {name: more.pop(name) for name in ("HF_TOKEN",) if name in more}
    return Child(
        command(request, module),
        environment(**more),
        folder,
        folder / "log",
        start=start,
        secrets=secrets,
    )


def finish(child: Child) -> tuple[int, list[StageEvent]]:
    events: list[StageEvent] = []
    with child:
        while not child.at_end:
            events += child.read(10)
        return child.reap(), events


def initial_environment(pid: int) -> bytes:
    """What other processes of this user can read; nothing if the kernel refuses."""
    try:
        return Path(f"/proc/{pid}/environ").read_bytes()
    except PermissionError:
        return b""


def is_forked(child: Child, forks: ForkClient) -> bool:
    """By the address of its stack: drawn when an interpreter starts, and kept in a fork. A process
    that has ended has none; who waits for it then tells."""
    if (stack := _stack(child.pid)) == _ENDED:
        return not isinstance(child._process, subprocess.Popen)
    return forks.server_pid is not None and stack == _stack(forks.server_pid)


def _stack(pid: int) -> str:
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return fields[28 - 3]  # counted from the one behind the name, the third


def state_of(folder: Path) -> dict[str, Any]:
    state: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return state
