"""Processes of the service that are forked from one that has imported what they import.

A new interpreter takes one or two seconds of a core for that. A forked process is a child of this
one, in a session of its own, as one that `subprocess` has started.
"""

import atexit
import contextlib
import gc
import importlib
import json
import os
import runpy
import select
import signal
import socket
import subprocess
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Final

from service.system.prctl import adopt_orphans
from worker.processes import linux
from worker.processes.fork_client import _ROOM, FORKABLE

_MOST_BYTES: Final = 1 << 16
_IMPORTS: Final = (
    *("billiard.sharedctypes", "celery.apps.worker", "celery.backends.base", "celery.bin.celery"),
    *("celery.concurrency.prefork", "celery.events.receiver", "celery.worker.components"),
    *("celery.worker.consumer", "celery.worker.strategy", "cffi.cparser", "encodings.idna"),
    *("kombu.matcher", "kombu.transport.redis", "psycopg", "sqlalchemy.dialects.sqlite"),
    *("service.store.jobs.claims", "service.store.schema", "tests.support.stages.preview"),
    *("tests.support.stages.stage", "tests.support.workers.stub_forks"),
    *("worker.lifecycle.start_check", "worker.supervision.interactive.predictions"),
    *("worker.supervision.interactive.previews", "worker.supervision.supervisor"),
    *("service.api.app", "service.api.http.server", "service.cli", "service.jobs.reconciler"),
    *("service.jobs.retention", "service.searches.runner", "service.webhooks.sender", "uvicorn"),
    *("worker.tracking.run_removal", "worker.tracking.search_shipper", "worker.tracking.shipper"),
)
"""Of a worker, of the API and of the reconciler; without `worker.app`, which reads the settings
when it is imported."""


class Process:
    """What the tests need of `subprocess.Popen`, of a child with this id."""

    def __init__(self, pid: int) -> None:
        self.pid = pid
        self.returncode: int | None = None

    def poll(self) -> int | None:
        if self.returncode is None:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            self.returncode = os.waitstatus_to_exitcode(status) if pid else None
        return self.returncode

    def wait(self, timeout: float | None = None) -> int:
        if self.returncode is None:
            ended = os.pidfd_open(self.pid)
            try:
                select.select([ended], [], [], timeout)
            finally:
                os.close(ended)
        status = self.poll()
        if status is None:
            raise subprocess.TimeoutExpired(str(self.pid), timeout or 0)
        return status

    def send_signal(self, number: int) -> None:
        if self.poll() is None:
            os.kill(self.pid, number)

    def terminate(self) -> None:
        self.send_signal(signal.SIGTERM)

    def kill(self) -> None:
        self.send_signal(signal.SIGKILL)


class Warm:
    """The process that forks. What it has forked lives on without it."""

    def __init__(self, environment: Mapping[str, str]) -> None:
        adopt_orphans()
        self._control, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        with theirs:
            self._server = subprocess.Popen(
                [sys.executable, "-m", __name__, str(theirs.fileno()), _ROOM],
                env={**environment, **FORKABLE},
                pass_fds=(theirs.fileno(),),
                start_new_session=True,
            )

    def close(self) -> None:
        self._control.close()
        self._server.wait()

    def start(
        self, module: str, arguments: Sequence[str], environment: Mapping[str, str], log: Path
    ) -> Process:
        """As `python -m <module> <arguments>`, with this environment; its output goes to `log`."""
        message = json.dumps([[module, *arguments], dict(environment)]).encode()
        with log.open("ab") as output:
            socket.send_fds(self._control, [message], [output.fileno()])
            answer = self._control.recv(_MOST_BYTES)
        assert answer, "the warm process has ended"
        return Process(int(answer))


@cache
def of_all_tests() -> Warm:
    warm = Warm(os.environ)
    atexit.register(warm.close)
    return warm


def _serve(control: socket.socket) -> list[str]:
    """Returns in each forked process: what it shall run. The server itself ends here."""
    while True:
        message, descriptors, _, _ = socket.recv_fds(control, _MOST_BYTES, 1)
        if not message:
            os._exit(0)
        words: list[str]
        words, environment = json.loads(message)
        reader, writer = os.pipe()
        intermediate = os.fork()
        if intermediate == 0:
            # It ends at once, so that the tests' process adopts the other one.
            forked = os.fork()
            if forked:
                os.write(writer, str(forked).encode())
                os._exit(0)
            _become(words, environment, descriptors[0])
            return words
        os.waitpid(intermediate, 0)
        control.send(os.read(reader, _MOST_BYTES))
        for descriptor in (reader, writer, descriptors[0]):
            os.close(descriptor)


def _become(words: list[str], environment: dict[str, str], output: int) -> None:
    os.setsid()
    for stream in (1, 2):
        os.dup2(output, stream)
    os.closerange(3, os.sysconf("SC_OPEN_MAX"))
    os.environ.clear()
    os.environ.update(environment)
    sys.argv[:] = words
    command = [sys.executable, "-m", *words]
    sys.orig_argv[:] = command
    linux.set_command_line(command)


if __name__ == "__main__":
    from service.settings import get_settings

    for name in _IMPORTS:
        importlib.import_module(name)
    assert get_settings.cache_info().currsize == 0, "an import has read the settings"
    assert len(linux.threads()) == 1, f"an import has started threads: {linux.threads()}"
    gc.collect()
    gc.freeze()
    with contextlib.suppress(KeyboardInterrupt):
        _words = _serve(socket.socket(fileno=int(sys.argv[1])))
    runpy.run_module(_words[0], run_name="__main__", alter_sys=True)
