"""What projects have used, by day of UTC: counted in the transaction that ends an attempt or a job.

What runs now is added when it is read, so the sum over all attempts is exact at any time, and
stays so when a job is deleted.
"""

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields
from datetime import UTC, datetime, time, timedelta
from typing import Final

from sqlalchemy import select
from sqlalchemy.orm import Session

from service.contract.states import JobState
from service.store.database import insert_or
from service.store.scheduling import fair_shares
from service.store.scope import Scope
from service.store.tables.jobs import AttemptRow, JobRow
from service.store.tables.teams import UsageDayRow

_MICROSECOND: Final = timedelta(microseconds=1)


@dataclass
class Used:
    """What is added to a day; named as the columns."""

    gpu_microseconds: int = 0
    worker_microseconds: int = 0
    attempts: int = 0
    succeeded: int = 0
    failed: int = 0
    cancelled: int = 0

    def __iadd__(self, other: "Used") -> "Used":
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))
        return self


@dataclass(frozen=True)
class Day:
    project: str
    day: str
    used: Used
    bytes_stored: int


def by_day(begin: datetime, end: datetime) -> Iterator[tuple[str, int]]:
    """The days of UTC between two times, with the microseconds of each."""
    begin, end = begin.astimezone(UTC), end.astimezone(UTC)
    while begin < end:
        midnight = datetime.combine(begin.date() + timedelta(days=1), time(), UTC)
        until = min(midnight, end)
        yield day_of(begin), (until - begin) // _MICROSECOND
        begin = until


def day_of(at: datetime) -> str:
    return at.astimezone(UTC).date().isoformat()


def _of_attempt(gpus: int, begin: datetime, end: datetime) -> dict[str, Used]:
    """An attempt with GPUs uses them; one without uses a worker."""
    return {
        day: Used(gpu_microseconds=gpus * taken) if gpus else Used(worker_microseconds=taken)
        for day, taken in by_day(begin, end)
    }


def add_attempt(session: Session, project: str, attempt: AttemptRow) -> None:
    """Of an attempt that ends in this transaction."""
    assert attempt.ended_at is not None
    days = _of_attempt(attempt.gpus, attempt.started_at, attempt.ended_at)
    days.setdefault(day_of(attempt.ended_at), Used()).attempts += 1
    # In one order, or two transactions might wait for each other.
    for day, used in sorted(days.items()):
        _add(session, project, day, used)


def add_end(session: Session, project: str, state: JobState, at: datetime) -> None:
    """Of a job that ends in this transaction."""
    _add(session, project, day_of(at), Used(**{state.value: 1}))


def _add(session: Session, project: str, day: str, used: Used) -> None:
    counts = asdict(used)
    new = insert_or(session, UsageDayRow).values(project_id=project, day=day, **counts)
    sums = {name: getattr(UsageDayRow, name) + new.excluded[name] for name in counts}
    session.execute(new.on_conflict_do_update(index_elements=["project_id", "day"], set_=sums))


def note_bytes(session: Session, stored: dict[str, int], at: datetime) -> None:
    """Remember what projects store now, if it is the most of the day."""
    day = day_of(at)
    for project, size in sorted(stored.items()):
        new = insert_or(session, UsageDayRow).values(project_id=project, day=day, bytes_stored=size)
        session.execute(
            new.on_conflict_do_update(
                index_elements=["project_id", "day"],
                set_={"bytes_stored": new.excluded.bytes_stored},
                where=UsageDayRow.bytes_stored < new.excluded.bytes_stored,
            )
        )


def days(session: Session, scope: Scope, first: str, last: str) -> list[Day]:
    """By day and project, from the day `first` to the day `last`, with what runs now."""
    query = select(UsageDayRow).where(
        scope.filter(UsageDayRow.project_id), UsageDayRow.day >= first, UsageDayRow.day <= last
    )
    found: dict[tuple[str, str], Used] = defaultdict(Used)
    sizes: dict[tuple[str, str], int] = {}
    names = [field.name for field in fields(Used)]
    for row in session.scalars(query):
        found[row.day, row.project_id] = Used(**{name: getattr(row, name) for name in names})
        sizes[row.day, row.project_id] = row.bytes_stored
    running = fair_shares.NOW_AND_RUNNING.where(scope.filter(JobRow.project_id))
    for project, gpus, began, now in session.execute(running):
        for day, used in _of_attempt(gpus, began, now).items():
            if first <= day <= last:
                found[day, project] += used
    return [
        Day(project, day, used, sizes.get((day, project), 0))
        for (day, project), used in sorted(found.items())
    ]
