"""The environment of a rank: how the launcher starts it, and how it reports its failure.

The launcher (`worker.stages.launch_ranks`) is the process that the supervisor sees. The first rank
sends its events to the supervisor directly; the launcher reports once how the stage ended.
"""

import os
import re
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from service.contract.failures import Failure
from worker import failures

FAILURE_FILE_VARIABLE: Final = "FINETUNE_FAILURE_FILE"
EXIT_PEER_LOST: Final = 113
_PEER_LOST_SECONDS: Final = 5.0
_PEER_ERRORS: Final = frozenset({"DistBackendError", "DistNetworkError", "DistStoreError"})
_PEER_LOST = re.compile(r"\bgloo\b|Connection (closed|reset) by peer", re.IGNORECASE)
# How NCCL and torch's watchdog report that a process has ended or does not respond.
_NCCL_PEER_LOST = re.compile(
    r"remote (process|peer)|connect(ion)? .*(closed|refused|reset|failed|timed out)|broken pipe|"
    r"socket\w* .*fail|time(d )?out|abort",
    re.IGNORECASE,
)


def number(environment: Mapping[str, str] = os.environ) -> int | None:
    """This process's rank; None if the stage has a single process."""
    return int(environment["RANK"]) if FAILURE_FILE_VARIABLE in environment else None


def environment(
    number: int, count: int, address: tuple[str, int], failure_file: Path
) -> dict[str, str]:
    """The variables torchrun sets for rank `number` of `count`; the store is at `address`."""
    host, port = address
    return {
        "RANK": str(number),
        "LOCAL_RANK": str(number),
        "WORLD_SIZE": str(count),
        "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": host,
        "MASTER_PORT": str(port),
        # The launcher hosts the store, not the first rank.
        "TORCHELASTIC_USE_AGENT_STORE": "True",
        "TORCHELASTIC_RESTART_COUNT": "0",
        FAILURE_FILE_VARIABLE: str(failure_file),
    }


def report(failure: Failure) -> None:
    """Leave `failure` for the launcher, unless another rank was first."""
    final = Path(os.environ[FAILURE_FILE_VARIABLE])
    partial = final.with_name(f"{final.name}.{os.getpid()}")
    partial.write_text(failure.model_dump_json())
    try:
        os.link(partial, final)  # atomic, and only the first rank succeeds
    except FileExistsError:
        pass
    finally:
        partial.unlink()


def reported(file: Path) -> Failure | None:
    return Failure.model_validate_json(file.read_bytes()) if file.exists() else None


def is_peer_lost(error: BaseException) -> bool:
    """Whether `error` only means that another rank has ended, which reports the cause itself."""
    return any(
        isinstance(link, RuntimeError) and _reports_peer_lost(link)
        for link in failures.causes(error)
    )


def _reports_peer_lost(error: RuntimeError) -> bool:
    text = str(error)
    if "nccl" in text.lower():
        # NCCL's general texts for each error type mention sockets and remote processes too.
        message = failures.nccl_last_error(text)
        is_remote = "ncclRemoteError" in text or _NCCL_PEER_LOST.search(message) is not None
        return failures.nccl_cause(error) is None and is_remote
    return type(error).__name__ in _PEER_ERRORS or _PEER_LOST.search(text) is not None


def await_termination() -> None:
    """Wait for the launcher's SIGTERM, which follows when another rank has ended."""
    time.sleep(_PEER_LOST_SECONDS)
