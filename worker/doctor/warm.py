"""Forks checks from one process that has imported what stages import, which takes many seconds.

For checks that run stages and start no CUDA themselves: they fork once more (`worker.doctor.jobs`).
`python -m worker.doctor.warm <module> ...` is that process: an order in JSON on each line of its
input, the exit status of the check on a line of its output.
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

from service.prctl import adopt_orphans, die_with_parent
from worker.doctor import jobs, processes, run_check
from worker.doctor.processes import Done

_READY: Final = b"ready\n"
_IMPORT_SECONDS: Final = 180.0
_KILLED_SECONDS: Final = 10.0


class Warm:
    """Starts that process when the first check asks for it; a context manager, which ends it.

    `imports`: the modules that it imports.
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
        """As `processes.run` of `worker.doctor.run_check`; None where it must be started anew.

        The imports do not count as its time.
        """
        adopt_orphans()
        if self._process is None:
            self._process = self._start()
            self._hear(_IMPORT_SECONDS)
        if self._process.poll() is not None:
            return None
        output = folder.with_name("output")
        order = {"arguments": list(arguments), "folder": str(folder), "output": str(output)}
        earlier = set(processes.descendants())
        try:
            self._say(json.dumps(order).encode() + b"\n")
            said = self._hear(seconds)
        finally:
            processes.kill_all_but(earlier)
        if said is None:  # killed at its limit, and that will be said, too
            self._hear(_KILLED_SECONDS)
        elif not said:
            return None
        text = output.read_bytes() if output.exists() else b""
        return Done(None if said is None else int(said), text.decode(errors="replace"))

    def _start(self) -> subprocess.Popen[bytes]:
        module = ["worker.processes.parent_death", str(os.getpid()), "worker.doctor.warm"]
        return subprocess.Popen(
            [sys.executable, "-P", "-m", *module, *self._imports],
            bufsize=0,
            env={**os.environ, **self._environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            start_new_session=True,
        )

    def _say(self, line: bytes) -> None:
        assert self._process is not None
        assert self._process.stdin is not None
        with suppress(BrokenPipeError):  # `_hear` then finds its end
            self._process.stdin.write(line)

    def _hear(self, seconds: float) -> bytes | None:
        """A line; None if there is none in time; empty at its end."""
        assert self._process is not None
        assert self._process.stdout is not None
        ready, _, _ = select.select([self._process.stdout], [], [], seconds)
        return self._process.stdout.readline() if ready else None


# ---- that process -----------------------------------------------------------------------------


def main() -> None:
    jobs.import_libraries(sys.argv[1:])
    gc.collect()
    gc.freeze()
    os.write(1, _READY)
    for line in sys.stdin.buffer:
        order = json.loads(line)
        pid = os.fork()
        if pid == 0:
            _check(**order)
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
    """No more orders and answers, but a log."""
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
