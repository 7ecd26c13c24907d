"""A job that had ended runs again from a later stage on: its checkpoint promoted, its model
published. The results that it has stay until there are new ones."""

from collections.abc import Sequence
from typing import Any

from sqlalchemy.orm import Session

from service.contract.follow_up import Promote, Publish
from service.contract.spec.spec import JobSpec
from service.contract.states import JobState, Stage
from service.store.database import clock
from service.store.jobs import state
from service.store.tables.jobs import JobRow


def begin(
    session: Session, row: JobRow, wanted: Promote | Publish, stage: Stage, missing: Sequence[str]
) -> None:
    """Queue the ended job at `stage`, an earlier one than usual when what that needs is `missing`.

    Its time and its retries begin anew.
    """
    asked = wanted.model_dump(mode="json")
    values = {**again(session, row, stage, keeps_progress=True), "follow_up": asked}
    data = {"follow_up": asked, "missing": list(missing)}
    event = f"{wanted.action}_requested"
    state.move(session, row.id, JobState(row.state), JobState.QUEUED, event, data=data, **values)


def again(session: Session, row: JobRow, stage: Stage, *, keeps_progress: bool) -> dict[str, Any]:
    """Columns of an ended job that waits for `stage`, as if nothing had been tried there yet."""
    waiting = state.waiting_for(stage, JobSpec.accepted(row.spec), clock(session))
    if keeps_progress:
        del waiting["progress"]  # how far the training came
    return {
        **waiting,
        "failure": None,
        "ended_at": None,
        "workspace_pruned_at": None,
        "retry_count": 0,
        "used_seconds": 0.0,
        "tracking_final": False,
        "tracking_retry_at": None,
    }
