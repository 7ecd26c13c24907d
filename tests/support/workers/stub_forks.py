"""Stub stages of a test's worker, forked from its own process, which has imported them if it was
forked from a warm one.

The worker's fork server would import them again, in half a second of a core for each worker.
"""

import os
import socket
import threading
from collections.abc import Mapping, Sequence
from typing import Any

from service.contract.states import Stage
from service.settings import Settings
from tests.support.forked_stubs import PREVIEW, STAGE
from tests.support.warm_processes import Process
from worker.processes import fork_client
from worker.processes.fork_client import ForkClient
from worker.processes.stage_environment import stage_environment
from worker.stages import fork_server


class _Forked(fork_client._Server):
    def _start_process(
        self, environment: Mapping[str, str], theirs: socket.socket, imports: Sequence[str]
    ) -> Any:
        if threading.active_count() > 1:  # the new one may need a lock that another thread holds
            return super()._start_process(environment, theirs, imports)
        pid = os.fork()
        if pid == 0:
            _serve(environment, theirs, imports)
        return Process(pid)


def _serve(environment: Mapping[str, str], theirs: socket.socket, imports: Sequence[str]) -> None:
    try:
        os.setsid()
        kept = theirs.fileno()
        os.closerange(3, kept)
        os.closerange(kept + 1, os.sysconf("SC_OPEN_MAX"))
        os.environ.clear()
        os.environ.update(environment)
        fork_server.serve(theirs, list(imports))
    finally:
        os._exit(0)


def make(settings: Settings, gpus: Any, also: Sequence[str] = ()) -> ForkClient | None:
    """In place of `fork_client.make`, whatever the settings say."""
    del gpus, also
    fork_client._Server = _Forked  # type: ignore[misc]
    environment = stage_environment(settings, Stage.TRAIN)
    return ForkClient(environment, modules=(STAGE, PREVIEW), imports=(STAGE, PREVIEW))
