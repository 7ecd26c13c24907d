"""Finds the processes of a stack by their role; Linux only (/proc)."""

import re
from pathlib import Path

import psutil

from tests.e2e.stack import Part
from tests.support.processes import is_alive

MARK = "FAULTS_STACK"
"""A variable in the environment of every process of a stack; stages inherit it, forked or not."""

_ATTEMPT = re.compile(r"/jobs/(job-[0-9a-f]+)/attempts/(\d+)$")


def marked(mark: str) -> list[psutil.Process]:
    """All living processes of the stack, whoever their parent is now."""
    wanted = f"{MARK}={mark}".encode()
    return [process for process in psutil.process_iter() if _carries(process, wanted)]


def _carries(process: psutil.Process, wanted: bytes) -> bool:
    try:
        environment = Path(f"/proc/{process.pid}/environ").read_bytes()
    except OSError:
        return False
    return wanted in environment.split(b"\0") and is_alive(process)


def attempt_of(process: psutil.Process) -> tuple[str, int] | None:
    """Job and epoch of a stage's process, by its working directory; None for any other process."""
    try:
        found = _ATTEMPT.search(process.cwd())
    except (psutil.Error, OSError):
        return None
    return None if found is None else (found[1], int(found[2]))


def stages(worker: Part) -> list[psutil.Process]:
    """The outermost process of each stage that the worker runs now."""
    return [
        process
        for process in worker.family()
        if attempt_of(process) is not None and _leads_its_session(process)
    ]


def supervisors(worker: Part) -> list[psutil.Process]:
    """The processes of the worker's pool."""
    try:
        return [
            child
            for child in psutil.Process(worker.process.pid).children()
            if "worker" in " ".join(child.cmdline()) and attempt_of(child) is None
        ]
    except psutil.NoSuchProcess:
        return []


def helpers(worker: Part) -> list[psutil.Process]:
    """Processes of the worker that are neither its pool nor stages or children of stages."""
    others = {worker.process.pid, *(process.pid for process in supervisors(worker))}
    return [
        process
        for process in worker.family()
        if process.pid not in others and attempt_of(process) is None
    ]


def _leads_its_session(process: psutil.Process) -> bool:
    try:
        # Fields after the name in brackets: state, parent, group, session.
        text = Path(f"/proc/{process.pid}/stat").read_text()
    except OSError:
        return False
    return int(text.rpartition(")")[2].split()[3]) == process.pid
