"""Calls that create a job and are repeated without a key: all attempts of a call make one job.

Clients of OpenAI number the attempts of a call and repeat it when no answer came. The first attempt
may have made the job, may still be in progress, or may never have arrived.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from datetime import datetime
from hashlib import sha256
from typing import Final

from sqlalchemy import select, text
from sqlalchemy.orm import Session

from service.store.database import clock, db_now
from service.store.tables.jobs import CreateCallRow

REPEATED_WITHIN_SECONDS: Final = 900
"""After an attempt; clients of OpenAI wait ten minutes for an answer and a minute before the next
attempt, unless the answer asks them to wait longer."""
_MOST_CALLS: Final = 100


@dataclass(frozen=True)
class Attempt:
    request_sha256: str
    """Of the request and the key that sent it."""
    count: int
    """How many attempts of the same call came before it."""
    began_at: datetime
    """When the service received its headers, by the database's clock."""


def earlier_job(session: Session, project_id: str, attempt: Attempt) -> str | None:
    """The job that another attempt of the same call has made, if there is one.

    From here to the end of the transaction no other attempt with this request is handled.
    """
    if session.get_bind().dialect.name == "postgresql":
        digest = sha256(f"{project_id}\n{attempt.request_sha256}".encode()).digest()
        number = int.from_bytes(digest[:8], signed=True)
        session.execute(text("SELECT pg_advisory_xact_lock(:n)"), {"n": number})
    calls = session.scalars(
        select(CreateCallRow)
        .where(
            CreateCallRow.project_id == project_id,
            CreateCallRow.request_sha256 == attempt.request_sha256,
            CreateCallRow.last_at >= db_now(-REPEATED_WITHIN_SECONDS),
        )
        .order_by(CreateCallRow.job_id.desc())
        .limit(_MOST_CALLS)
    )
    call = _call_of(attempt, calls)
    if call is None:
        return None
    call.first_count = min(call.first_count, attempt.count)
    call.last_count = max(call.last_count, attempt.count)
    call.last_at = clock(session)
    return call.job_id


def _call_of(attempt: Attempt, calls: Iterable[CreateCallRow]) -> CreateCallRow | None:
    """The call, of these from the newest to the oldest, that this is the next attempt of; or the
    one whose later attempt was faster."""
    count = attempt.count
    repeated = [call for call in calls if _is_repeat(attempt, call)]
    # Several equal calls at once: each repeat continues another one of them.
    return min(
        repeated,
        key=lambda call: count - call.last_count if count > call.last_count else 0,
        default=None,
    )


def _is_repeat(attempt: Attempt, call: CreateCallRow) -> bool:
    if attempt.count > call.last_count:
        return True
    # Equal numbers are different calls. A lower one that began later is a new call, too.
    is_known = attempt.count in (call.first_count, call.last_count)
    return not is_known and attempt.began_at <= call.created_at


def remember(session: Session, project_id: str, attempt: Attempt, job_id: str) -> None:
    """Note in the transaction that makes the job."""
    now = clock(session)
    session.add(
        CreateCallRow(
            job_id=job_id,
            project_id=project_id,
            request_sha256=attempt.request_sha256,
            first_count=attempt.count,
            last_count=attempt.count,
            created_at=now,
            last_at=now,
        )
    )
