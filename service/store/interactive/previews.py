"""Previews as users see them. What workers and the reconciler do is in `preview_claims`."""

from collections.abc import Sequence
from typing import Final

from sqlalchemy import delete, func, select
from sqlalchemy.orm import Session

from service.contract.interactive.previews import DEADLINE_SECONDS, UNFINISHED, PreviewOptions
from service.contract.routing import CPU_QUEUE, PREVIEW_QUEUE, Message, MessageKind
from service.contract.spec.spec import JobSpec
from service.errors import PreviewNotFoundError, TooManyPreviewsError
from service.store.interactive.requests import URGENT, BriefRequests
from service.store.scheduling.fleet import Fleet, LiveWorker
from service.store.tables.interactive import PreviewRow

MOST_KEPT: Final = 20
"""Previews of a project; the oldest go first."""
LAST: Final = 9
"""Of a project's further previews, so that it cannot keep the workers from the jobs of others."""
REQUESTS: Final = BriefRequests(
    PreviewRow,
    "preview",
    most_unfinished=4,
    deadline_seconds=DEADLINE_SECONDS,
    not_found=PreviewNotFoundError,
    too_many=TooManyPreviewsError,
)


def insert(session: Session, project: str, spec: JobSpec, options: PreviewOptions) -> str:
    """The id of a queued preview. Raises TooManyPreviewsError, ProjectArchivedError."""
    preview_id = REQUESTS.insert(
        session, project, spec=spec.model_dump(mode="json"), options=options.model_dump()
    )
    _forget_oldest(session, project)
    return preview_id


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


def messages(session: Session, preview_ids: Sequence[str], fleet: Fleet) -> list[Message]:
    """What wakes workers for queued previews: the first unfinished one of each project is urgent,
    its others wait until no job does."""
    first = select(func.min(PreviewRow.id)).where(PreviewRow.state.in_(UNFINISHED))
    urgent = set(session.scalars(first.group_by(PreviewRow.project_id)))
    queue = queue_of(fleet)
    return [
        Message(MessageKind.PREVIEW, each, queue, URGENT if each in urgent else LAST)
        for each in preview_ids
    ]


def _forget_oldest(session: Session, project: str) -> None:
    mine = PreviewRow.project_id == project
    newest = select(PreviewRow.id).where(mine).order_by(PreviewRow.id.desc()).limit(MOST_KEPT)
    kept = session.scalars(newest).all()
    ended = PreviewRow.state.not_in(UNFINISHED)
    session.execute(delete(PreviewRow).where(mine, ended, PreviewRow.id.not_in(kept)))
