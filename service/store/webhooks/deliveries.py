"""The sender's side of the outbox: which deliveries are due, whose turn it is, and how they ended.

A claim is a lease: it moves `due_at` to the lease's end, so that another sender takes over what a
dead one has left. An outcome carries the claim's epoch: one that comes too late changes nothing.
"""

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final, NamedTuple

from sqlalchemy import ColumnElement, delete, func, literal, select, update
from sqlalchemy.orm import InstrumentedAttribute, Session, aliased

from service.contract import webhooks
from service.contract.webhooks import DeliveryState, DisabledReason
from service.store.database import clock, db_now
from service.store.projects import audit
from service.store.tables.teams import SecretRow
from service.store.tables.webhooks import DeliveryRow, WebhookRow

LEASE_SECONDS: Final = 60.0
_FORGOTTEN_AT_ONCE: Final = 10_000
_GONE: Final = 410


def _pending(state: InstrumentedAttribute[str]) -> ColumnElement[bool]:
    """A literal in the statement: SQLite does not use the index of pending rows for a parameter."""
    return state == literal(DeliveryState.PENDING.value, literal_execute=True)


_PENDING: Final = _pending(DeliveryRow.state)


@dataclass(frozen=True)
class Sealed:
    """A secret, and the name under which it was sealed."""

    name: str
    content: str


@dataclass(frozen=True)
class Claimed:
    """A delivery that this sender has for LEASE_SECONDS."""

    id: str
    epoch: int
    project: str
    lane: str
    webhook_id: str | None
    url: str
    secrets: tuple[Sealed, ...]
    """The first one is the newest; none: it is not there any more."""
    event_id: str
    event_type: str
    payload: dict[str, Any]
    tries: int
    """Before this one."""


@dataclass(frozen=True)
class Outcome:
    """How a try ended: delivered if there is no `error`."""

    claimed: Claimed
    status: int | None = None
    answer: str | None = None
    error: str | None = None
    is_final: bool = False
    """No further try can succeed."""
    retry_after: float = 0.0
    """Seconds that the receiver wants to be left alone."""


class Lane(NamedTuple):
    """Deliveries that wait together for one receiver."""

    name: str
    project: str


@dataclass(frozen=True)
class Room:
    """How many may be sent at once, and how many of each lane already are."""

    most: int
    of_lane: int
    of_project: int
    on_the_way: Mapping[Lane, int] = field(default_factory=dict)
    failing: Collection[str] = frozenset()
    """Lanes whose last try failed. Each has one at a time, and all of them together at most half
    of the room: many receivers that never answer leave the other half to those that do."""


# ---- whose turn it is ---------------------------------------------------------------------------


def is_due(session: Session) -> bool:
    """Whether there is anything to claim."""
    return bool(_due_lanes(session))


def failing_lanes(session: Session) -> set[str]:
    """The lanes of endpoints whose last try failed, for a sender that has just started."""
    query = select(WebhookRow.id).where(
        WebhookRow.failing_since.is_not(None), WebhookRow.disabled_at.is_(None)
    )
    return set(session.scalars(query))


def _due_lanes(session: Session) -> list[Lane]:
    """The longest waiting first. Reads one row of each lane that has a pending
    delivery, however many it has."""
    first = select(func.min(DeliveryRow.lane)).where(_PENDING)
    lanes = select(first.scalar_subquery().label("lane")).cte("lanes", recursive=True)
    following = aliased(DeliveryRow)
    after = (
        select(func.min(following.lane))
        .where(_pending(following.state), following.lane > lanes.c.lane)
        .scalar_subquery()
    )
    lanes = lanes.union_all(select(after).where(lanes.c.lane.is_not(None)))
    head = aliased(DeliveryRow)
    oldest = (
        select(head.id)
        .where(_pending(head.state), head.lane == lanes.c.lane)
        .order_by(head.due_at)
        .limit(1)
        .scalar_subquery()
    )
    query = (
        select(DeliveryRow.lane, DeliveryRow.project_id)
        .join(lanes, DeliveryRow.id == oldest)
        .where(DeliveryRow.due_at <= db_now())
        .order_by(DeliveryRow.due_at)
    )
    return [Lane(*row) for row in session.execute(query)]


class _OnTheWay:
    """Counts what is sent of each lane and project, and of their failing lanes."""

    def __init__(self, room: Room) -> None:
        self._room = room
        self.lanes: Counter[Lane] = Counter()
        self.projects: Counter[str] = Counter()
        self._failing: Counter[str] = Counter()
        for lane, count in room.on_the_way.items():
            self.add(lane, count)

    def add(self, lane: Lane, count: int = 1) -> None:
        self.lanes[lane] += count
        self.projects[lane.project] += count
        if lane.name in self._room.failing:
            self._failing[lane.project] += count

    def has_room(self, lane: Lane) -> bool:
        room = self._room
        if self.projects[lane.project] >= room.of_project:
            return False
        if lane.name not in room.failing:
            return self.lanes[lane] < room.of_lane
        return (
            self.lanes[lane] == 0
            and self._failing[lane.project] < max(1, room.of_project // 2)
            and self._failing.total() < max(1, room.most // 2)
        )


def shares(lanes: Sequence[Lane], room: Room) -> Counter[str]:
    """How many of each lane are sent next: one at a time goes to the project, and in it to the
    lane, with the fewest on their way, so that slow receivers delay those of others little."""
    on_the_way = _OnTheWay(room)
    granted: Counter[str] = Counter()
    for _ in range(room.most - on_the_way.lanes.total()):
        open_lanes = [
            (on_the_way.projects[lane.project], on_the_way.lanes[lane], place)
            for place, lane in enumerate(lanes)
            if on_the_way.has_room(lane)
        ]
        if not open_lanes:
            break
        lane = lanes[min(open_lanes)[2]]
        granted[lane.name] += 1
        on_the_way.add(lane)
    return granted


def claim(session: Session, room: Room) -> list[Claimed]:
    """Claim what is due, as far as there is room."""
    ids: list[str] = []
    for lane, count in shares(_due_lanes(session), room).items():
        query = (
            select(DeliveryRow.id)
            .where(_PENDING, DeliveryRow.lane == lane, DeliveryRow.due_at <= db_now())
            .order_by(DeliveryRow.due_at)
            .limit(count)
            .with_for_update(skip_locked=True)
        )
        ids += session.scalars(query)
    if not ids:
        return []
    rows = session.scalars(
        update(DeliveryRow)
        .where(DeliveryRow.id.in_(ids))
        .values(epoch=DeliveryRow.epoch + 1, due_at=db_now(LEASE_SECONDS))
        .returning(DeliveryRow),
        execution_options={"synchronize_session": False},
    ).all()
    return _with_receivers(session, rows)


def _with_receivers(session: Session, rows: Sequence[DeliveryRow]) -> list[Claimed]:
    """Ends those whose endpoint was disabled or deleted."""
    wanted = {row.webhook_id for row in rows if row.webhook_id is not None}
    query = select(WebhookRow, WebhookRow.previous_until > db_now()).where(
        WebhookRow.id.in_(wanted), WebhookRow.disabled_at.is_(None)
    )
    endpoints = {row.id: (row, bool(overlaps)) for row, overlaps in session.execute(query)}
    claimed = []
    for row in rows:
        if row.webhook_id is None:
            url, secrets = row.url or "", _of_project(session, row)
        elif row.webhook_id in endpoints:
            endpoint, overlaps = endpoints[row.webhook_id]
            url, secrets = endpoint.url, _of_endpoint(endpoint, overlaps=overlaps)
        else:
            row.state, row.ended_at = DeliveryState.FAILED, db_now()
            row.error = "the webhook was disabled or deleted"
            continue
        claimed.append(
            Claimed(
                id=row.id,
                epoch=row.epoch,
                project=row.project_id,
                lane=row.lane,
                webhook_id=row.webhook_id,
                url=url,
                secrets=secrets,
                event_id=row.event_id,
                event_type=row.event_type,
                payload=row.payload,
                tries=row.tries,
            )
        )
    session.flush()
    return claimed


def _of_project(session: Session, row: DeliveryRow) -> tuple[Sealed, ...]:
    name = row.secret_name or ""
    secret = session.get(SecretRow, (row.project_id, name))
    return () if secret is None else (Sealed(name, secret.sealed),)


def _of_endpoint(row: WebhookRow, *, overlaps: bool) -> tuple[Sealed, ...]:
    contents = [row.sealed]
    if overlaps and row.previous_sealed is not None:
        contents.append(row.previous_sealed)
    return tuple(Sealed(webhooks.secret_name(row.id), content) for content in contents)


# ---- how it ended -------------------------------------------------------------------------------


def settle_all(session: Session, outcomes: Iterable[Outcome], jitter: Callable[[], float]) -> None:
    """Write how tries ended, those of one endpoint together and the oldest delivery first.

    Each locks its delivery and then its endpoint. Other senders, `webhooks.remove` and a new key
    of the secrets lock in the same order: none of them waits for one that waits for it.
    """
    for outcome in sorted(
        outcomes, key=lambda each: (each.claimed.webhook_id or "", each.claimed.id)
    ):
        settle(session, outcome, jitter())


def settle(session: Session, outcome: Outcome, jitter: float) -> DeliveryState | None:
    """Write how a try ended; the delivery's state, or None when another sender has it by now.

    `jitter`: 0 to 1, for the wait before the next try.
    """
    row = session.scalars(
        select(DeliveryRow)
        .where(
            DeliveryRow.id == outcome.claimed.id,
            DeliveryRow.epoch == outcome.claimed.epoch,
            _PENDING,
        )
        .with_for_update(),
        execution_options={"populate_existing": True},
    ).one_or_none()
    if row is None:
        return None
    now = clock(session)
    row.tries += 1
    row.status, row.answer, row.error = outcome.status, outcome.answer, outcome.error
    if outcome.error is None:
        row.state, row.ended_at = DeliveryState.DELIVERED, now
    else:
        _after_failure(row, outcome, now, jitter)
    session.flush()
    if row.webhook_id is not None:
        _note_health(session, row.webhook_id, outcome, now)
    return DeliveryState(row.state)


def _after_failure(row: DeliveryRow, outcome: Outcome, now: datetime, jitter: float) -> None:
    asked = min(outcome.retry_after, webhooks.LONGEST_WAIT_SECONDS)
    wait = max(webhooks.wait_seconds(row.tries, jitter), asked)
    age = (now - row.created_at).total_seconds()
    if outcome.is_final or age + wait > webhooks.RETRIED_SECONDS:
        row.state, row.ended_at = DeliveryState.FAILED, now
    else:
        # In whole milliseconds, as the database's clock counts them on SQLite.
        row.due_at = db_now(round(wait, 3))


def _note_health(session: Session, webhook_id: str, outcome: Outcome, now: datetime) -> None:
    """Note since when an endpoint has failed, and whether it is disabled because of this. Writes
    only what changes: the row is that of all deliveries of the endpoint."""
    endpoint = session.get(WebhookRow, webhook_id, populate_existing=True)
    if endpoint is None or endpoint.disabled_at is not None:
        return
    if outcome.error is None:
        if endpoint.failing_since is not None:
            endpoint.failing_since = None
    elif outcome.status == _GONE:
        _disable(session, endpoint, DisabledReason.GONE, now)
    elif endpoint.failing_since is None:
        endpoint.failing_since = now
    elif (now - endpoint.failing_since).total_seconds() > webhooks.FAILING_SECONDS:
        _disable(session, endpoint, DisabledReason.FAILING, now)
    session.flush()


def _disable(session: Session, row: WebhookRow, reason: DisabledReason, now: datetime) -> None:
    row.disabled_at, row.disabled_reason = now, reason
    audit.write(
        session,
        audit.Entry(
            action=f"disable_webhook_{reason}",
            target=row.id,
            project_id=row.project_id,
            client="service",
        ),
    )


# ---- retention ----------------------------------------------------------------------------------


def forget(session: Session) -> int:
    """Remove deliveries that ended long ago, and of each endpoint, or of the receivers that a
    project's specs name, those beyond the newest that are kept, a part at a time; how many."""
    old = select(DeliveryRow.id).where(
        DeliveryRow.ended_at < db_now(-webhooks.KEPT_DAYS * webhooks.DAY_SECONDS)
    )
    place = func.row_number().over(
        partition_by=(DeliveryRow.project_id, DeliveryRow.webhook_id),
        order_by=DeliveryRow.id.desc(),
    )
    ended = (
        select(DeliveryRow.id, place.label("place"))
        .where(DeliveryRow.ended_at.is_not(None))
        .subquery()
    )
    surplus = select(ended.c.id).where(ended.c.place > webhooks.MOST_KEPT)
    count = 0
    for superfluous in (old, surplus):
        ids = superfluous.limit(_FORGOTTEN_AT_ONCE)
        # Skips locked rows: others that remove the same rows may have locked them in another order.
        free = select(DeliveryRow.id).where(DeliveryRow.id.in_(ids))
        free = free.with_for_update(skip_locked=True)
        removed = delete(DeliveryRow).where(DeliveryRow.id.in_(free)).returning(DeliveryRow.id)
        count += len(session.scalars(removed).all())
    return count
