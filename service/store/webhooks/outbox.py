"""The outbox of webhooks: deliveries are written in the transaction of the event that they report.

A project without endpoints costs one indexed read for each event that receivers can ask for.
"""

import hashlib
import re
from collections import defaultdict
from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import bindparam, select
from sqlalchemy import insert as insert_into
from sqlalchemy.orm import Session

from service.contract import webhooks
from service.contract.webhooks import DeliveryState, EventType
from service.store.tables.base import new_id
from service.store.tables.jobs import EventRow, JobRow
from service.store.tables.webhooks import DeliveryRow, WebhookRow

_INSERT: Final = insert_into(DeliveryRow.__table__)  # type: ignore[arg-type]
_ENDPOINTS: Final = select(WebhookRow.project_id, WebhookRow.id, WebhookRow.events).where(
    WebhookRow.project_id.in_(bindparam("projects", expanding=True)),
    WebhookRow.disabled_at.is_(None),
)
_LANE_OF_SPECS: Final = "specs-"
_LANE_DIGITS: Final = 32


class _Receiver(NamedTuple):
    lane: str
    filters: list[str]
    webhook_id: str | None = None
    url: str | None = None
    secret_name: str | None = None


def add(session: Session, job: JobRow, event: EventRow) -> None:
    """Write what is to be sent about an event of a job's history."""
    add_all(session, [(job, event)], event.at)


def add_all(session: Session, events: Iterable[tuple[JobRow, EventRow]], at: datetime) -> None:
    """The same for events of several jobs, in one statement."""
    wanted = [
        (job, event, types)
        for job, event in events
        if (types := webhooks.types_of(event.type, event.data))
    ]
    if not wanted:
        return
    endpoints = _endpoints(session, sorted({job.project_id for job, _, _ in wanted}))
    rows = [
        _row(job, event, event_type, receiver, at)
        for job, event, types in wanted
        for receiver in (*endpoints[job.project_id], *_of_spec(job))
        for event_type in types
        if webhooks.passes(receiver.filters, event_type)
    ]
    if rows:
        session.connection().execute(_INSERT, rows)


def _endpoints(session: Session, projects: Sequence[str]) -> dict[str, list[_Receiver]]:
    found: dict[str, list[_Receiver]] = defaultdict(list)
    # Without the ORM, which takes longer than the statement.
    for row in session.connection().execute(_ENDPOINTS, {"projects": projects}):
        found[row.project_id].append(_Receiver(row.id, row.events, row.id))
    return found


def _of_spec(job: JobRow) -> list[_Receiver]:
    return [
        _Receiver(
            lane=_lane_of_spec(job.project_id, given["url"]),
            filters=given["events"],
            url=given["url"],
            secret_name=given["secret"],
        )
        for given in job.spec.get("webhooks") or ()
    ]


def _lane_of_spec(project: str, url: str) -> str:
    """One for each host: a receiver that never answers must not hold up the project's others."""
    host = re.split(r"[/?#]", url.partition("://")[2], maxsplit=1)[0].lower()
    named = f"{project} {host}"
    return f"{_LANE_OF_SPECS}{hashlib.sha256(named.encode()).hexdigest()[:_LANE_DIGITS]}"


def _row(
    job: JobRow, event: EventRow, event_type: EventType, receiver: _Receiver, at: datetime
) -> dict[str, Any]:
    event_id = webhooks.event_id(job.id, event.seq, event_type)
    data = {"id": job.id} if event_type.startswith("fine_tuning.") else _data(job, event)
    return pending(
        project=job.project_id,
        webhook_id=receiver.webhook_id,
        lane=receiver.lane,
        job_id=job.id,
        url=receiver.url,
        secret_name=receiver.secret_name,
        event_id=event_id,
        event_type=event_type,
        payload=webhooks.envelope(event_id, event_type, at, data),
        at=at,
    )


def pending(
    *, project: str, event_type: str, payload: dict[str, Any], at: datetime, **columns: str | None
) -> dict[str, Any]:
    """The columns of a delivery that is due at once."""
    return {
        "id": new_id("delivery"),
        "project_id": project,
        "event_type": str(event_type),
        "payload": payload,
        "state": DeliveryState.PENDING.value,
        "created_at": at,
        "due_at": at,
        **columns,
    }


def _data(job: JobRow, event: EventRow) -> dict[str, Any]:
    return {
        "id": job.id,
        "project": job.project_id,
        "name": job.name,
        "task": job.task,
        "state": job.state,
        "stage": job.stage,
        "metadata": job.metadata_,
        "created_at": _text(job.created_at),
        "ended_at": _text(getattr(job, "ended_at", None)),
        "failure": getattr(job, "failure", None),
        "event": {"seq": event.seq, "type": event.type, "data": event.data},
        "urls": {"job": f"/v1/jobs/{job.id}", "events": f"/v1/jobs/{job.id}/events"},
    }


def _text(at: datetime | None) -> str | None:
    return None if at is None else at.isoformat().replace("+00:00", "Z")
