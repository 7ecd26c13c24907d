"""What passes between a supervisor, its fork server, and the processes that the server forks."""

from collections.abc import Mapping
from typing import Final

from pydantic import BaseModel, ConfigDict

from service.contract.resources import MOST_PROCESSES

READY: Final = b"ready"
"""The server's first message, when it has imported everything; any other says why it is unfit."""
FORK: Final = b"fork"
"""To the server, with the descriptor of a socket: fork a process that listens there.

When that is the supervisor's child it sends its pid, that of the process between, and why it cannot
be a stage (empty: it can). Then it waits for a ForkRequest, which comes with the descriptors of the
job's log, of the event pipe, and of the locks on the stage's GPUs."""
MAX_MESSAGE: Final = 1 << 20
MOST_DESCRIPTORS: Final = 2 + MOST_PROCESSES

LAUNCHER: Final = "worker.stages.launch_ranks"
"""The stage that forks once more: its ranks."""

LATE: Final = frozenset({"HF_TOKEN", "HF_HUB_OFFLINE", "CUDA_VISIBLE_DEVICES"})
"""Variables that differ from stage to stage. The server has no token and sees no GPU; all other
variables it has from its start, because libraries read them when they are loaded."""


class ForkRequest(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    command: list[str]
    """As for a new interpreter: `python -P -m <module> <arguments>`; the module has a `main`."""
    environment: dict[str, str]
    folder: str


def lasting(environment: Mapping[str, str]) -> dict[str, str]:
    """What of a stage's environment is the same for all stages."""
    return {name: value for name, value in environment.items() if name not in LATE}
