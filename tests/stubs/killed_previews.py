"""A worker process that is killed at a point of a preview.

`python -m tests.stubs.killed_previews POINT ID`, with settings from the environment. Without such a
point it makes the preview.
"""

import os
import signal
import sys
from typing import Any

from service.settings import Settings
from service.store import preview_claims
from service.store.database import Database
from tests.stubs import preview
from worker.processes import private_folder
from worker.processes.child import Child
from worker.supervision import stage_request
from worker.supervision.previews import Previews

POINTS: dict[str, tuple[Any, str]] = {
    "claimed": (stage_request, "build"),
    "running": (Child, "read"),
    "stopped": (private_folder, "remove"),
    "found": (preview_claims, "end"),
    "ended": (Previews, "_remove_folder"),
    "removed": (preview_claims, "forget_folder"),
}


def _die(*_arguments: Any, **_options: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def main(point: str, preview_id: str) -> None:
    settings = Settings()
    if point in POINTS:
        place, name = POINTS[point]
        setattr(place, name, _die)
    Previews(Database(settings.sqlalchemy_url), settings, command=preview.command).wake(
        preview_id, f"worker-{point}"
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
