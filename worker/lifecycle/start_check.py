"""The quick checks of `finetune doctor`, run once when a worker starts."""

import json
import os
import subprocess
import threading
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Any, Final

import structlog

from service.system import child_environment, inherited_secrets, own_packages

log = structlog.get_logger(__name__)

_COMMAND: Final = ("worker.doctor", "--quick", "--json", "--in-background")
# It has low priority, and waits for the checks of other workers on this machine.
_SECONDS: Final = 1800.0
_LONGEST: Final = 500


def start(
    on_report: Callable[[dict[str, Any]], None], command: Sequence[str] = _COMMAND
) -> threading.Thread:
    """In the background; neither the worker's registration nor a job waits for it.

    `on_report` is called once, on the thread, with `{"status", "checked_at", "findings"}`.
    """
    thread = threading.Thread(
        target=_run, args=(on_report, command), name="start-check", daemon=True
    )
    thread.start()
    return thread


def _run(on_report: Callable[[dict[str, Any]], None], command: Sequence[str]) -> None:
    try:
        done = _check(command)
        if not done.stdout:
            raise ValueError(done.stderr)
        report = _short(json.loads(done.stdout))
    except (OSError, subprocess.TimeoutExpired, ValueError, TypeError, KeyError) as error:
        log.warning("doctor.failed", error=str(error)[-_LONGEST:])
        now = datetime.now(UTC).isoformat(timespec="seconds")
        report = {"status": "not_run", "checked_at": now, "findings": []}
    for finding in report["findings"]:
        if finding["status"] in ("warning", "failed"):
            log.warning("doctor.finding", **finding)
    on_report(report)


def _check(command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    bound = own_packages.python("worker.processes.parent_death", str(os.getpid()))
    environment, adopted = child_environment.split(os.environ)
    secrets = {**inherited_secrets.received(), **adopted}
    with inherited_secrets.pipe(secrets) as (variables, descriptors):
        return subprocess.run(
            [*bound, *command],
            env=environment | variables,
            pass_fds=descriptors,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_SECONDS,
            start_new_session=True,
            check=False,
        )


def _short(report: dict[str, Any]) -> dict[str, Any]:
    """The parts of a report that are stored, each text cut to `_LONGEST` characters."""
    fields = ("name", "status", "summary", "reason", "remedy")
    return {
        "status": report["status"],
        "checked_at": report["made_at"],
        "findings": [
            {field: line[field][-_LONGEST:] for field in fields} for line in report["checks"]
        ],
    }
