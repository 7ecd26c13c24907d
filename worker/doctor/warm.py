"""Forks checks from a process that has imported the stages' libraries, which takes many seconds.

Only for checks that run stages and do not start CUDA: they fork again (`worker.doctor.jobs`).
`python -m worker.doctor.warm <module> ...` is that process. It reads one JSON request per line from
stdin and writes the exit status of each check as a line to stdout.
"""

import gc
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from traceback import print_exc
from typing import Final, NoReturn, Self

from service import own_packages
from service.prctl import adopt_orphans, die_with_parent
from worker.doctor import jobs, processes, run_check
from worker.doctor.processes import Done

_READY: Final = b"ready\n"
_IMPORT_SECONDS: Final = 180.0
_KILLED_SECONDS: Final = 10.0


class Warm:
    """Starts the warm process when the first check needs it, and ends it on exit.

    `imports`: the modules that the process imports.
    """

    def __init__(self, imports: Sequence[str], environment: Mapping[str, str]) -> None:
        self._imports = imports
        self._environment = environment
        self._process: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.communicate()

    def run(self, arguments: Sequence[str], *, seconds: float, folder: Path) -> Done | None:
        """Run a check as `processes.run` would; None if the warm process cannot run it.

        The imports do not count towards `seconds`.
        """
        adopt_orphans()
        if self._process is None:
            self._process = self._start()
            self._receive(_IMPORT_SECONDS)
        if self._process.poll() is not None:
            return None
        output = folder.with_name("output")
        request = {"arguments": list(arguments), "folder": str(folder), "output": str(output)}
        earlier = set(processes.descendants())
        try:
            self._send(json.dumps(request).encode() + b"\n")
            reply = self._receive(seconds)
        finally:
            processes.kill_all_but(earlier)
        if reply is None:  # killed at its limit: discard its exit status
            self._receive(_KILLED_SECONDS)
        elif not reply:
            return None
        text = output.read_bytes() if output.exists() else b""
        return Done(None if reply is None else int(reply), text.decode(errors="replace"))

    def _start(self) -> subprocess.Popen[bytes]:
        module = ["worker.processes.parent_death", str(os.getpid()), "worker.doctor.warm"]
        return subprocess.Popen(
            own_packages.python(*module, *self._imports),
            bufsize=0,
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _send(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `_receive` then reads the end of the output
            self._process.stdin.write(line)

    def _receive(self, seconds: float) -> bytes | None:
        """One line; None if none arrives in time; empty at the end of the output."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else None


# ---- in the warm process ----------------------------------------------------------------------


def main() -> None:
    jobs.import_libraries(sys.argv[1:])
    gc.collect()
    gc.freeze()
    os.write(1, _READY)
    for line in sys.stdin.buffer:
        request = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _check(**request)
        _, status = os.waitpid(pid, 0)
        os.write(1, b"%d\n" % os.waitstatus_to_exitcode(status))


def _check(arguments: list[str], folder: str, output: str) -> NoReturn:
    status = 1
    try:
        os.setsid()
        die_with_parent(os.getppid())
        _redirect(output)
        os.chdir(folder)
        sys.argv[1:] = arguments
        run_check.main()
        status = 0
    except BaseException:
        print_exc()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(status)


def _redirect(output: str) -> None:
    """Detach from the request and reply pipes and write all output to the log."""
    for number, name, flags in (
        (0, os.devnull, os.O_RDONLY),
        (1, output, os.O_WRONLY | os.O_CREAT),
        (2, output, os.O_WRONLY | os.O_CREAT),
    ):
        descriptor = os.open(name, flags | os.O_APPEND, 0o600)
        os.dup2(descriptor, number)
        os.close(descriptor)


if __name__ == "__main__":
    main()
