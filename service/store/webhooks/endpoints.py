"""A project's endpoints, as users see and change them."""

import secrets
from collections.abc import Callable
from typing import Any, Final

from sqlalchemy import ColumnElement, delete, func, select
from sqlalchemy.orm import Session

from service.contract import webhooks
from service.contract.webhooks import DeliveryState, DisabledReason, EventType
from service.errors import (
    DeliveryNotFoundError,
    JobNotFoundError,
    TooManyWebhooksError,
    WebhookDisabledError,
    WebhookNotFoundError,
)
from service.store.database import clock, db_now, page
from service.store.projects import quotas
from service.store.scope import Scope
from service.store.tables.base import new_id
from service.store.tables.jobs import JobRow
from service.store.tables.webhooks import DeliveryRow, WebhookRow
from service.store.webhooks import outbox

Seal = Callable[[str, str], str]
"""`seal(project, name)`: the new secret, sealed under this name."""
_CONTENT: Final = ("url", "description", "events")


def create(session: Session, project: str, given: dict[str, Any], seal: Seal) -> WebhookRow:
    """`given`: url, description and events. Raises TooManyWebhooksError, ProjectArchivedError.

    The project's row is locked, so that of requests at the same time no more get through than may,
    and a new key of the secrets finds this one.
    """
    owner = quotas.locked_open(session, project)
    count = session.scalar(select(func.count()).where(WebhookRow.project_id == project)) or 0
    if count >= webhooks.MOST_ENDPOINTS:
        raise TooManyWebhooksError(
            f"The project {owner.name} may have {webhooks.MOST_ENDPOINTS} webhooks, and has "
            f"{count}. Delete one first.",
            quota="webhooks",
            limit=webhooks.MOST_ENDPOINTS,
            used=count,
        )
    webhook_id = new_id("webhook")
    row = WebhookRow(
        id=webhook_id,
        project_id=project,
        sealed=seal(project, webhooks.secret_name(webhook_id)),
        created_at=db_now(),
        updated_at=db_now(),
        **given,
    )
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def list_all(session: Session, scope: Scope) -> list[WebhookRow]:
    """The oldest first."""
    query = select(WebhookRow).where(scope.filter(WebhookRow.project_id)).order_by(WebhookRow.id)
    return list(session.scalars(query))


def get(session: Session, scope: Scope, webhook_id: str) -> WebhookRow:
    """Raises WebhookNotFoundError."""
    query = select(WebhookRow).where(
        WebhookRow.id == webhook_id, scope.filter(WebhookRow.project_id)
    )
    row = session.scalars(query).one_or_none()
    if row is None:
        raise WebhookNotFoundError(webhook_id)
    return row


def _locked(session: Session, scope: Scope, webhook_id: str) -> WebhookRow:
    row = get(session, scope, webhook_id)
    quotas.locked(session, row.project_id)
    session.refresh(row, with_for_update=True)
    return row


def change(session: Session, scope: Scope, webhook_id: str, given: dict[str, Any]) -> WebhookRow:
    """Set url, description or events; `enabled`: whether events are sent. Raises
    WebhookNotFoundError."""
    row = _locked(session, scope, webhook_id)
    for name in _CONTENT:
        if name in given:
            setattr(row, name, given[name])
    enabled = given.get("enabled")
    if enabled and row.disabled_at is not None:
        row.disabled_at = row.disabled_reason = row.failing_since = None
    elif enabled is False and row.disabled_at is None:
        row.disabled_at, row.disabled_reason = db_now(), DisabledReason.USER
    row.updated_at = db_now()
    session.flush()
    session.refresh(row)
    return row


def rotate(
    session: Session, scope: Scope, webhook_id: str, seal: Seal, overlap_seconds: int
) -> WebhookRow:
    """A new secret; the present one signs as well for so long. Raises WebhookNotFoundError."""
    row = _locked(session, scope, webhook_id)
    row.previous_sealed = row.sealed if overlap_seconds else None
    row.previous_until = db_now(overlap_seconds) if overlap_seconds else None
    row.sealed = seal(row.project_id, webhooks.secret_name(row.id))
    row.updated_at = db_now()
    session.flush()
    session.refresh(row)
    return row


def remove(session: Session, scope: Scope, webhook_id: str) -> str:
    """With its deliveries; the project's id. Raises WebhookNotFoundError."""
    row = get(session, scope, webhook_id)
    # In the order in which senders lock them, and before the endpoint: see deliveries.settle_all.
    owned = select(DeliveryRow.id).where(DeliveryRow.webhook_id == row.id)
    locked = owned.order_by(DeliveryRow.id).with_for_update()
    session.execute(
        delete(DeliveryRow).where(DeliveryRow.id.in_(locked)),
        execution_options={"synchronize_session": False},
    )
    deleted = session.execute(
        delete(WebhookRow).where(WebhookRow.id == row.id).returning(WebhookRow.id),
        execution_options={"synchronize_session": False},
    )
    if deleted.one_or_none() is None:  # another request was faster
        raise WebhookNotFoundError(webhook_id)
    return row.project_id


def seal_again(session: Session, again: Callable[[str, str, str], str]) -> int:
    """Replace every sealed secret by `again(project, name, sealed)`; how many there are. The
    caller has locked all projects."""
    rows = session.scalars(select(WebhookRow)).all()
    for row in rows:
        name = webhooks.secret_name(row.id)
        row.sealed = again(row.project_id, name, row.sealed)
        if row.previous_sealed is not None:
            row.previous_sealed = again(row.project_id, name, row.previous_sealed)
    session.flush()
    return len(rows)


# ---- deliveries ---------------------------------------------------------------------------------


def test(session: Session, scope: Scope, webhook_id: str) -> DeliveryRow:
    """Have a test event sent. Raises WebhookNotFoundError, WebhookDisabledError."""
    row = _enabled(session, scope, webhook_id)
    now = clock(session)
    event_id = f"evt_{secrets.token_hex(16)}"
    data = {"webhook": row.id, "project": row.project_id}
    return _sent(
        session,
        project=row.project_id,
        webhook_id=row.id,
        lane=row.id,
        event_id=event_id,
        event_type=EventType.TEST,
        payload=webhooks.envelope(event_id, EventType.TEST, now, data),
        at=now,
    )


def _enabled(session: Session, scope: Scope, webhook_id: str) -> WebhookRow:
    row = get(session, scope, webhook_id)
    if row.disabled_at is not None:
        raise WebhookDisabledError(
            f"The webhook is disabled ({row.disabled_reason}): enable it first with PATCH "
            f'/v1/webhooks/{row.id} {{"enabled": true}}.'
        )
    return row


def _sent(session: Session, **given: Any) -> DeliveryRow:
    """`given`: as `webhook_outbox.pending` takes it."""
    row = DeliveryRow(**outbox.pending(**given))
    session.add(row)
    session.flush()
    session.refresh(row)
    return row


def deliveries(
    session: Session,
    scope: Scope,
    *,
    webhook_id: str | None = None,
    job_id: str | None = None,
    state: DeliveryState | None = None,
    after: str | None = None,
    limit: int,
) -> tuple[list[DeliveryRow], bool]:
    """Of an endpoint or of a job: the newest first, beyond the id `after`; and whether there are
    more."""
    query = select(DeliveryRow).where(scope.filter(DeliveryRow.project_id))
    for column, wanted in (
        (DeliveryRow.webhook_id, webhook_id),
        (DeliveryRow.job_id, job_id),
        (DeliveryRow.state, state),
    ):
        if wanted is not None:
            query = query.where(column == wanted)
    if after is not None:
        query = query.where(DeliveryRow.id < after)
    return page(session, query.order_by(DeliveryRow.id.desc()), limit)


def replay(session: Session, scope: Scope, webhook_id: str, delivery_id: str) -> DeliveryRow:
    """A new delivery of the same event, with the same `webhook-id`. Raises WebhookNotFoundError,
    WebhookDisabledError, DeliveryNotFoundError."""
    owner = _enabled(session, scope, webhook_id)
    return _again(session, _delivery(session, delivery_id, DeliveryRow.webhook_id == owner.id))


def replay_of_job(session: Session, scope: Scope, job_id: str, delivery_id: str) -> DeliveryRow:
    """The same for a delivery about a job, to a webhook or to a receiver that its spec names.
    Raises JobNotFoundError, DeliveryNotFoundError, WebhookNotFoundError, WebhookDisabledError."""
    of_job = select(JobRow.id).where(JobRow.id == job_id, scope.filter(JobRow.project_id))
    if session.scalar(of_job) is None:
        raise JobNotFoundError(job_id)
    row = _delivery(session, delivery_id, DeliveryRow.job_id == job_id)
    if row.webhook_id is not None:
        _enabled(session, scope, row.webhook_id)
    return _again(session, row)


def _delivery(session: Session, delivery_id: str, of_owner: ColumnElement[bool]) -> DeliveryRow:
    query = select(DeliveryRow).where(DeliveryRow.id == delivery_id, of_owner)
    row = session.scalars(query).one_or_none()
    if row is None:
        raise DeliveryNotFoundError(delivery_id)
    return row


def _again(session: Session, row: DeliveryRow) -> DeliveryRow:
    return _sent(
        session,
        project=row.project_id,
        webhook_id=row.webhook_id,
        lane=row.lane,
        job_id=row.job_id,
        url=row.url,
        secret_name=row.secret_name,
        event_id=row.event_id,
        event_type=row.event_type,
        payload=row.payload,
        at=clock(session),
    )
