"""Previews as users see them. What workers and the reconciler do is in `preview_claims`."""

import secrets
import time
from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.contract.previews import (
    DEADLINE_SECONDS,
    UNFINISHED,
    PreviewOptions,
    PreviewState,
)
from service.contract.routing import CPU_QUEUE, PREVIEW_QUEUE
from service.contract.spec import JobSpec
from service.errors import PreviewNotFoundError, TooManyPreviewsError
from service.store import jobs, projects, quotas
from service.store.database import db_now
from service.store.fleet import Fleet, LiveWorker
from service.store.models import PreviewRow
from service.store.scope import Scope

MOST_UNFINISHED: Final = 4
MOST_KEPT: Final = 20
"""Previews of a project; the oldest go first."""
KEPT_SECONDS: Final = 3600.0
HEAD_START: Final = 2.0
"""Seconds that the API has to send the message, before the reconciler does."""
URGENT: Final = 0
"""Somebody waits for the answer: the message is read before those of jobs."""
LAST: Final = 9
"""Of a project's further previews, so that it cannot keep the workers from the jobs of others."""
_PREFIX: Final = "preview-"


def new_id() -> str:
    return f"{_PREFIX}{time.time_ns():016x}{secrets.token_hex(8)}"


def is_id(text: str) -> bool:
    """Whether a message is about a preview, not about a job."""
    return text.startswith(_PREFIX)


def insert(session: Session, project: str, spec: JobSpec, options: PreviewOptions) -> str:
    """The id of a queued preview. Raises TooManyPreviewsError, ProjectArchivedError.

    The project's row is locked, so that of requests at the same time no more get through than may.
    """
    owner = quotas.locked(session, project)
    if owner.archived_at is not None:
        raise projects.archived_error(owner.name)
    mine = PreviewRow.project_id == project
    unfinished = select(func.count()).where(mine, PreviewRow.state.in_(UNFINISHED))
    if (session.scalar(unfinished) or 0) >= MOST_UNFINISHED:
        raise TooManyPreviewsError(
            f"The project {owner.name} may have {MOST_UNFINISHED} unfinished previews. Wait until "
            "one has ended."
        )
    _forget_oldest(session, project)
    row = PreviewRow(
        id=new_id(),
        project_id=project,
        spec=spec.model_dump(mode="json"),
        options=options.model_dump(),
        state=PreviewState.QUEUED,
        created_at=db_now(),
        deadline_at=db_now(DEADLINE_SECONDS),
        expires_at=db_now(KEPT_SECONDS),
        next_publish_at=db_now(HEAD_START),
    )
    session.add(row)
    session.flush()
    return row.id


def able_workers(fleet: Fleet) -> list[LiveWorker]:
    """Those that make previews, busy or not."""
    queues = (CPU_QUEUE, PREVIEW_QUEUE)
    return [worker for queue in queues for worker in fleet.can_run(queue, min_gpus=0)]


def queue_of(fleet: Fleet) -> str:
    """Where a message is read soonest. Workers of jobs come first, whose processes are warm; those
    for previews alone are soon free again."""
    if any(worker.is_free(CPU_QUEUE) for worker in fleet.can_run(CPU_QUEUE, min_gpus=0)):
        return CPU_QUEUE
    return PREVIEW_QUEUE if fleet.can_run(PREVIEW_QUEUE, min_gpus=0) else CPU_QUEUE


def messages(session: Session, preview_ids: Sequence[str], fleet: Fleet) -> list[jobs.Message]:
    """What wakes workers for queued previews: the first unfinished one of each project is urgent,
    its others wait until no job does."""
    first = select(func.min(PreviewRow.id)).where(PreviewRow.state.in_(UNFINISHED))
    urgent = set(session.scalars(first.group_by(PreviewRow.project_id)))
    queue = queue_of(fleet)
    return [jobs.Message(each, queue, URGENT if each in urgent else LAST) for each in preview_ids]


def _forget_oldest(session: Session, project: str) -> None:
    """Make room for one more."""
    mine = PreviewRow.project_id == project
    newest = select(PreviewRow.id).where(mine).order_by(PreviewRow.id.desc()).limit(MOST_KEPT - 1)
    kept = session.scalars(newest).all()
    ended = PreviewRow.state.not_in(UNFINISHED)
    session.execute(delete(PreviewRow).where(mine, ended, PreviewRow.id.not_in(kept)))


def get(session: Session, scope: Scope, preview_id: str) -> PreviewRow:
    """Raises PreviewNotFoundError."""
    query = select(PreviewRow).where(
        PreviewRow.id == preview_id,
        scope.of(PreviewRow.project_id),
        PreviewRow.expires_at > db_now(),
    )
    row = session.scalars(query).one_or_none()
    if row is None:
        raise PreviewNotFoundError(preview_id)
    return row


def unfinished(session: Session, scope: Scope) -> dict[str, int]:
    """State → previews that have not ended."""
    query = (
        select(PreviewRow.state, func.count())
        .where(PreviewRow.state.in_(UNFINISHED), scope.of(PreviewRow.project_id))
        .group_by(PreviewRow.state)
    )
    found = {str(state): count for state, count in session.execute(query)}
    return {state.value: found.get(state, 0) for state in sorted(UNFINISHED)}


def is_unfinished(session: Session, scope: Scope, preview_id: str) -> bool:
    """As often as a waiting request asks: without the result."""
    query = select(PreviewRow.state).where(
        PreviewRow.id == preview_id, scope.of(PreviewRow.project_id)
    )
    return session.scalar(query) in UNFINISHED
