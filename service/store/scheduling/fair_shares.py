"""The projects' shares of the workers in SQL: read to choose a job, charged when an attempt ends.

A running attempt counts from the transaction that claims it: it is read from its own row.
"""

from collections import defaultdict
from collections.abc import Collection, Iterable
from dataclasses import replace
from typing import Final, NamedTuple

from sqlalchemy import Connection, and_, bindparam, select, update
from sqlalchemy.orm import Session

from service.contract.routing import CPU_QUEUE, GPU_QUEUE, QUEUES
from service.contract.states import HELD, JobState
from service.store.database import db_now, insert_or
from service.store.scheduling import fair_queue
from service.store.scheduling.fair_queue import Pool, Running, Share, pool_of
from service.store.tables.jobs import AttemptRow, JobRow
from service.store.tables.projects import ProjectRow
from service.store.tables.teams import FairShareRow

NOW_AND_RUNNING: Final = (
    select(JobRow.project_id, AttemptRow.gpus, AttemptRow.started_at, db_now())
    .join(AttemptRow, and_(AttemptRow.job_id == JobRow.id, AttemptRow.epoch == JobRow.epoch))
    .where(JobRow.state.in_(sorted(HELD)))
)
"""Project, GPUs, beginning and the time now of each attempt that runs."""
_WITH_SHARE: Final = and_(
    FairShareRow.project_id == ProjectRow.id, FairShareRow.pool == bindparam("pool")
)
_OWNER: Final = (
    select(ProjectRow.id, ProjectRow.max_gpus, FairShareRow.virtual_seconds)
    .select_from(JobRow)
    .join(ProjectRow, ProjectRow.id == JobRow.project_id)
    .outerjoin(FairShareRow, _WITH_SHARE)
    .where(JobRow.id == bindparam("job_id"))
)
# A worker without GPUs may take a job that needs none of them.
_QUEUES: Final = {
    Pool.GPU: [queue for queue in QUEUES if queue != CPU_QUEUE],
    Pool.CPU: [CPU_QUEUE, GPU_QUEUE],
}


class Owner(NamedTuple):
    """A job's project, as a claim needs to know it."""

    project: str
    max_gpus: int | None
    has_share: bool


def owner_of(session: Session, job_id: str, gpus: int) -> Owner | None:
    """One statement, without the ORM: part of every claim."""
    given = {"job_id": job_id, "pool": pool_of(gpus)}
    found = session.connection().execute(_OWNER, given).one_or_none()
    return None if found is None else Owner(found[0], found[1], found[2] is not None)


def read(session: Session, pool: Pool, projects: Collection[str]) -> dict[str, Share]:
    """The shares of these projects, which have waiting jobs, and of those with running ones."""
    connection = session.connection()
    running = _running(connection, pool)
    query = select(
        ProjectRow.id,
        ProjectRow.weight,
        ProjectRow.max_gpus,
        FairShareRow.virtual_seconds,
        FairShareRow.mean_seconds,
    ).outerjoin(FairShareRow, _WITH_SHARE)
    wanted = query.where(ProjectRow.id.in_({*projects, *running}))
    known: dict[str, Share] = {}
    new: dict[str, Share] = {}
    for project, weight, max_gpus, virtual, mean in connection.execute(wanted, {"pool": pool}):
        share = Share(project, weight, running=tuple(running[project]), max_gpus=max_gpus)
        if virtual is None:
            new[project] = share
        else:
            known[project] = replace(share, virtual_seconds=virtual, mean_seconds=mean)
    begin = fair_queue.lowest(known.values())
    return known | {
        name: replace(share, virtual_seconds=begin, is_new=True) for name, share in new.items()
    }


def _running(connection: Connection, pool: Pool) -> dict[str, list[Running]]:
    found: dict[str, list[Running]] = defaultdict(list)
    for project, gpus, started_at, now in connection.execute(NOW_AND_RUNNING):
        if pool_of(gpus) is pool:
            found[project].append(Running(gpus, max(0.0, (now - started_at).total_seconds())))
    return found


def gpus_in_use(connection: Connection) -> dict[str, int]:
    """GPUs that the running stages of each project have."""
    running = _running(connection, Pool.GPU)
    return {project: sum(one.gpus for one in theirs) for project, theirs in running.items()}


def begin(session: Session, project: str, gpus: int) -> None:
    """Give the project a share: its first attempt in the pool is about to begin."""
    pool = pool_of(gpus)
    share = read(session, pool, [project])[project]
    new = insert_or(session, FairShareRow).values(
        project_id=project,
        pool=pool,
        virtual_seconds=share.virtual_seconds,
        mean_seconds=share.mean_seconds,
    )
    # Another worker may be starting its first attempt too.
    session.execute(new.on_conflict_do_nothing())


def charge(session: Session, project: str, gpus: int, seconds: float) -> None:
    """Add an attempt that has ended, after its job's row says so; projects without jobs keep no
    credit."""
    pool = pool_of(gpus)
    # All rows in one order, or two of these might wait for each other.
    locked = select(FairShareRow.project_id).where(FairShareRow.pool == pool)
    known = set(session.scalars(locked.order_by(FairShareRow.project_id).with_for_update()))
    if project not in known:
        begin(session, project, gpus)
    shares = read(session, pool, {project, *known})
    shares[project] = shares[project].charged(gpus, seconds)
    _write(session, pool, [shares[project]])
    if len(shares) > 1:
        active = {name for name, share in shares.items() if share.running}
        active |= _with_waiting_jobs(session, pool)
        _write(session, pool, fair_queue.lifted(shares.values(), active))


def _write(session: Session, pool: Pool, shares: Iterable[Share]) -> None:
    for share in shares:
        session.execute(
            update(FairShareRow)
            .where(FairShareRow.project_id == share.project, FairShareRow.pool == pool)
            .values(virtual_seconds=share.virtual_seconds, mean_seconds=share.mean_seconds),
            execution_options={"synchronize_session": False},
        )


def _with_waiting_jobs(session: Session, pool: Pool) -> set[str]:
    """Projects with queued jobs that a worker of the pool may take."""
    waiting = select(JobRow.id).where(
        JobRow.project_id == ProjectRow.id,
        JobRow.state == JobState.QUEUED,
        JobRow.queue.in_(_QUEUES[pool]),
    )
    return set(session.scalars(select(ProjectRow.id).where(waiting.exists())))
