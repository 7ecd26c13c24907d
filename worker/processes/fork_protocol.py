"""The messages between a supervisor, its fork server, and the processes that the server forks."""

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

from service.contract.spec.resources import MOST_PROCESSES
from service.system.child_environment import PROXIES

READY: Final = b"ready"
"""The server's first message, after its imports; any other message says why it cannot fork."""
FORK: Final = b"fork"
"""To the server, with the descriptor of a socket: fork a process that listens on it.

Once the supervisor has adopted that process, it sends its pid, the pid of the intermediate process,
and why it cannot be a stage (empty if it can). Then it waits for a ForkRequest, sent with the
descriptors of the job's log, the event pipe, its stdin (if `has_stdin`), the pipe with its secrets
(if `has_secrets`), and the locks on the stage's GPUs."""
MAX_MESSAGE: Final = 1 << 20
MOST_DESCRIPTORS: Final = 4 + MOST_PROCESSES

LAUNCHER: Final = "worker.stages.launch_ranks"
"""The stage that forks again, to start its ranks."""
PREDICTOR: Final = "worker.inference.server"
"""Runs until its stdin ends, and has no result: it starts like a stage, but is not one."""

LATE: Final = frozenset(
    {"HF_HUB_OFFLINE", "HF_HOME", "CUDA_VISIBLE_DEVICES", "TMPDIR", "HOME"}
    | {name for proxy in PROXIES for name in (proxy, proxy.lower())}
)
"""Variables that differ between stages. The server sees no GPU and no network; it has all other
variables from its start, because libraries read them when they are loaded."""


class ForkRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str]
    """As for a new interpreter: `python -P -m <module> <arguments>`; the module has a `main`."""
    environment: dict[str, str]
    folder: str
    has_stdin: bool = False
    has_secrets: bool = False
    view: str | None = None
    """JSON of a View: what the stage sees; None: it is not confined."""


def lasting(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that are the same for all stages."""
    return {name: value for name, value in environment.items() if name not in LATE}
