"""Previews in the database, and reads of them that bypass the service."""

import threading
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import select, update

from service.contract.failures import Failure
from service.contract.interactive.previews import PreviewOptions, PreviewResult
from service.store.database import Database, db_now
from service.store.interactive import preview_claims, previews
from service.store.interactive.preview_claims import PreviewClaim
from service.store.scheduling import registration
from service.store.scheduling.registration import WorkerInfo
from service.store.tables.files import RemovalRow
from service.store.tables.interactive import BriefRow, PreviewRow
from tests.support.factories import make_spec
from tests.support.threads import again_and_again


def make_preview(database: Database, project: str = "default", **spec: Any) -> str:
    """The id of a queued preview."""
    with database.write() as session:
        return previews.insert(session, project, make_spec(**spec), PreviewOptions())


def preview(database: Database, preview_id: str) -> PreviewRow:
    with database.read() as session:
        return session.get_one(PreviewRow, preview_id)


def put_preview(database: Database, preview_id: str, **values: Any) -> None:
    with database.write() as session:
        session.execute(update(PreviewRow).where(PreviewRow.id == preview_id).values(**values))


def claim_preview(
    database: Database, preview_id: str, worker_id: str = "worker-1"
) -> PreviewClaim | None:
    with database.write() as session:
        return preview_claims.claim(session, preview_id, worker_id, lease_seconds=60)


def bring_removals_forward(database: Database) -> None:
    """As if the time had passed after which leftovers are removed."""
    with database.write() as session:
        session.execute(update(RemovalRow).values(created_at=db_now(-1)))


def register_worker(database: Database, name: str = "worker-1", queue: str = "cpu") -> None:
    """A live worker with one slot, in whose place the test makes previews."""
    devices = [{"type": "cpu", "name": "test"}]
    info = WorkerInfo(name, "here", 1, queues=[queue], devices=devices, version="1", slots=1)
    with database.write() as session:
        registration.register(session, info)


def made_by_thread(
    database: Database, ended: PreviewResult | Failure, after: threading.Event | None = None
) -> AbstractContextManager[None]:
    """While the context lasts, but not before `after`, previews end like this at once, as if a
    worker made them."""

    def make(preview_id: str) -> None:
        claimed = claim_preview(database, preview_id)
        assert claimed is not None
        with database.write() as session:
            preview_claims.end(session, claimed, ended)

    return done_by_thread(database, PreviewRow, make, after)


def done_by_thread(
    database: Database,
    table: type[BriefRow],
    do: Callable[[str], None],
    after: threading.Event | None,
) -> AbstractContextManager[None]:
    """While the context lasts, but not before `after`, `do` is called with the id of each row that
    is queued."""

    def work() -> None:
        with database.read() as session:
            queued = session.scalars(select(table.id).where(table.state == "queued")).all()
        for row_id in queued:
            do(row_id)

    return again_and_again(work, after)
