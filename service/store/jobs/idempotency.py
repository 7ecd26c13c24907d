"""Idempotency keys: the same request twice makes one job. Each project has its own."""

from hashlib import sha256

from sqlalchemy import text
from sqlalchemy.orm import Session

from service.errors import IdempotencyInFlightError, IdempotencyKeyReusedError
from service.store.database import clock
from service.store.tables.jobs import IdempotencyRow


def earlier_job(session: Session, project_id: str, key: str, request_sha256: str) -> str | None:
    """The job that this key made; from here to the end of the transaction the key is ours.

    Raises IdempotencyInFlightError while another transaction has the key (Postgres; SQLite lets
    one writer in at a time, so there the second waits) and IdempotencyKeyReusedError when the
    key came with another request.
    """
    if session.get_bind().dialect.name == "postgresql":
        number = int.from_bytes(sha256(f"{project_id}\n{key}".encode()).digest()[:8], signed=True)
        mine = session.scalar(text("SELECT pg_try_advisory_xact_lock(:n)"), {"n": number})
        if not mine:
            raise IdempotencyInFlightError(
                "A request with this Idempotency-Key is being handled; ask again in a moment."
            )
    return job_of(session, project_id, key, request_sha256)


def job_of(session: Session, project_id: str, key: str, request_sha256: str) -> str | None:
    """The job that this key made. Raises IdempotencyKeyReusedError when the request was another."""
    row = session.get(IdempotencyRow, (project_id, key))
    if row is None:
        return None
    if row.request_sha256 != request_sha256:
        raise IdempotencyKeyReusedError(
            "This Idempotency-Key has been used with another request.", job_id=row.job_id
        )
    return row.job_id


def remember(session: Session, project_id: str, key: str, request_sha256: str, job_id: str) -> None:
    session.add(
        IdempotencyRow(
            project_id=project_id,
            key=key,
            request_sha256=request_sha256,
            job_id=job_id,
            created_at=clock(session),
        )
    )
