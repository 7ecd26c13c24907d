"""Runs a function in a process of its own, with a time limit.

`python -m worker.doctor.isolated <module>:<function> <folder>` is that process. The folder holds
`context.json`; what the function returns is written there as `result.json`.
"""

import importlib
import os
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import psutil

from service.system import own_packages
from service.system.prctl import adopt_orphans
from worker.doctor.check import Context

_TAIL_CHARACTERS: Final = 1500
# A process that the kernel cannot kill (inside a driver call) must not delay the other checks.
_KILL_SECONDS: Final = 10.0


@dataclass(frozen=True)
class ProcessResult:
    """How a process ended."""

    status: int | None
    """The return code of subprocess; None if the process was killed at its limit."""
    tail: str
    """The last lines of its stdout and stderr."""
    result: bytes | None
    """What the function returned, as JSON, even if its process failed later."""


def ending(status: int | None) -> str:
    if status is None:
        return "was killed at its limit"
    return f"ended with status {status}" if status >= 0 else f"ended with signal {-status}"


def run(reference: str, context: Context, *, seconds: float) -> ProcessResult:
    """Call `module:function` with the context. When it ends, all that it started is killed.

    Its process dies with this one. Its output goes to a file, because a pipe stays open as long as
    any process holds it. From then on this process adopts orphans.
    """
    adopt_orphans()
    folder, earlier = context.scratch.parent, set(_descendants())
    output, result = folder / "output", folder / "result.json"
    (folder / "context.json").write_text(context.model_dump_json(), encoding="utf-8")
    own = ("worker.doctor.isolated", reference, str(folder))
    with output.open("wb") as file:
        process = subprocess.Popen(
            own_packages.python("worker.processes.parent_death", str(os.getpid()), *own),
            cwd=context.scratch,
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )
        status: int | None = None
        try:
            with suppress(subprocess.TimeoutExpired):
                status = process.wait(seconds)
        finally:
            _kill_all_but(earlier)
            with suppress(subprocess.TimeoutExpired):
                process.wait(1)
    tail = output.read_text(errors="replace")[-_TAIL_CHARACTERS:].strip()
    return ProcessResult(status, tail, result.read_bytes() if result.exists() else None)


def _descendants() -> list[psutil.Process]:
    return psutil.Process().children(recursive=True)


def _kill_all_but(earlier: set[psutil.Process]) -> None:
    """Kill the descendants of this process that are not in `earlier`, until none is left."""
    deadline = time.monotonic() + _KILL_SECONDS
    while (left := [p for p in _descendants() if p not in earlier]) and time.monotonic() < deadline:
        for process in left:
            with suppress(psutil.NoSuchProcess):
                process.kill()
        psutil.wait_procs(left, timeout=0.2)


def function_of(reference: str) -> Callable[..., Any]:
    """Import and return the function `module:function`."""
    module, _, name = reference.partition(":")
    function: Callable[..., Any] = getattr(importlib.import_module(module), name)
    return function


def main() -> None:
    reference, folder = sys.argv[1], Path(sys.argv[2])
    context = Context.model_validate_json((folder / "context.json").read_bytes())
    result = function_of(reference)(context)
    # Renamed, so that a process killed meanwhile leaves no partial result.
    partial = folder / "partial.json"
    partial.write_text(result.model_dump_json(), encoding="utf-8")
    partial.rename(folder / "result.json")


if __name__ == "__main__":
    main()
