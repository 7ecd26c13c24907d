"""The one Celery task: claim → supervise → end."""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, Final

import structlog
from celery import signals
from sqlalchemy.exc import DBAPIError, SQLAlchemyError

from service import broker
from service.contract.routing import WAKE_TASK, Message, MessageKind, gpus_of
from service.contract.spec.spec import SPEC_VERSION
from service.contract.states import ENDED, JobState
from service.settings import Settings, get_settings
from service.store.database import Database, is_outage
from service.store.jobs import claims, messages, wait_reasons
from service.store.jobs.claims import Claim
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobRow
from worker.app import SHUTDOWN, app
from worker.devices.gpu_locks import GpuLocks, HeldGpus
from worker.devices.gpu_scheduler import Assignment, GpuScheduler
from worker.devices.gpus import Device, gpus
from worker.processes import allocator, fork_client, spawn
from worker.processes.fork_client import ForkClient
from worker.processes.spawn import Start
from worker.supervision import host_lack
from worker.supervision.interactive.predictions import Predictions
from worker.supervision.interactive.previews import Previews
from worker.supervision.supervisor import Supervisor
from worker.tracking import run_removal, search_shipper, shipper
from worker.tracking.trackers import Tracker

log = structlog.get_logger(__name__)

# Of choosing a job, when other workers are faster each time.
_TRIES: Final = 10

Enqueue = Callable[[Message], bool]


@contextmanager
def _outages_logged(**subject: str) -> Iterator[None]:
    """`subject`: what every line of the log in the block is about."""
    with structlog.contextvars.bound_contextvars(**subject):
        try:
            yield
        except SQLAlchemyError as error:
            log.error("database.unreachable", error=str(error.__cause__ or error))


@dataclass(frozen=True)
class JobRunner:
    """Runs jobs; made once in each process of the pool, after the fork."""

    settings: Settings
    database: Database
    tracker: Tracker
    supervisor: Supervisor
    enqueue: Enqueue
    gpus: Sequence[Device]
    fork_client: ForkClient | None = None

    def wake(self, job_id: str, worker_id: str, queues: list[str]) -> None:
        """Claim the job and run its stage; if it has ended, complete its tracking.

        The message of a job that needs GPUs may start another job: the first one that waits in
        this worker's GPU queues.
        """
        # The row is unchanged or its lease expires: the reconciler enqueues the job again.
        with _outages_logged(job_id=job_id):
            assignment = self._next(job_id, worker_id, queues)
            if assignment is None:
                self._complete_tracking(job_id)
                return
            self._run(assignment)
            self.prepare_fork_server()

    def ship_search(self, search_id: str) -> None:
        """Send to MLflow what it lacks of the search."""
        with _outages_logged(search_id=search_id):
            search_shipper.sync(self.database, self.tracker, search_id)

    def remove_run(self, run_id: str) -> None:
        """Remove from MLflow what is scheduled of this run."""
        with _outages_logged(run_id=run_id):
            run_removal.remove(self.database, self.tracker, self.settings, run_id)

    def prepare_fork_server(self) -> None:
        """Start or replace the fork server while no job is waiting for its imports."""
        if self.fork_client is not None and not SHUTDOWN.is_requested():
            self.fork_client.ensure_server()

    def _next(self, job_id: str, worker_id: str, queues: list[str]) -> Assignment | None:
        with self.database.read() as session:
            queue = messages.waits_in(session, job_id)
        if queue is None or queue not in queues:
            return None
        try_claim = partial(self._claim, worker_id)
        if self.gpus and gpus_of(queue):
            scheduler = GpuScheduler(
                self.database,
                GpuLocks(self.settings.devices_dir, self.gpus),
                try_claim=try_claim,
                enqueue=self._enqueue_if_due,
                shutdown=SHUTDOWN,
                poll_seconds=self.settings.poll_seconds,
            )
            return scheduler.next(job_id, queues)
        return self._next_without_gpus(job_id, queue, try_claim)

    def _next_without_gpus(
        self,
        job_id: str,
        queue: str,
        try_claim: Callable[[str, str, tuple[str, ...]], Claim | None],
    ) -> Assignment | None:
        """The first in the fair order of the projects; if that is another job than the one whose
        message has come, that message is sent again."""
        for _ in range(_TRIES):
            with self.database.read() as session:
                chosen = claims.next_in(session, job_id, queue)
            claimed = try_claim(chosen, queue, ())
            if claimed is not None or chosen == job_id:
                break
            # Another worker was faster.
        if chosen != job_id:
            self._enqueue_if_due(job_id)
        return None if claimed is None else Assignment(claimed, HeldGpus())

    def _run(self, assignment: Assignment) -> None:
        claimed = assignment.claim
        with structlog.contextvars.bound_contextvars(job_id=claimed.job_id):
            with assignment.held as taken:
                state = self.supervisor.supervise(claimed, taken.descriptors)
            if state in ENDED:
                self._complete_tracking(claimed.job_id)
            elif state is JobState.QUEUED and not SHUTDOWN.is_requested():
                self._enqueue_if_due(claimed.job_id)
            if claimed.gpus:
                self._enqueue_within_quota(claimed)

    def _enqueue_within_quota(self, ended: Claim) -> None:
        """Wake a worker for a job of the project that has waited for its quota of GPUs: its own
        message may have come while there was none left."""
        with self.database.read() as session:
            job_id = claims.first_of_project(session, ended.project_id)
        if job_id is not None:
            self._enqueue_if_due(job_id)

    def _claim(
        self, worker_id: str, job_id: str, queue: str, gpus: tuple[str, ...]
    ) -> Claim | None:
        if self._is_lacking(job_id, gpus):
            return None
        claimed: Claim | None = None
        try:
            with self.database.write() as session:
                claimed = claims.claim(
                    session,
                    job_id,
                    worker_id,
                    queues=[queue],
                    gpus=gpus,
                    lease_seconds=self.settings.lease_seconds,
                )
        except DBAPIError as error:
            if claimed is None or not is_outage(error):
                raise
            return self._settled(claimed)
        return claimed

    def _is_lacking(self, job_id: str, gpus: tuple[str, ...]) -> bool:
        """Whether this host still lacks what it lacked at the job's last attempt, which then waits
        for another check."""
        with self.database.read() as session:
            lack = wait_reasons.lack(session, EVERYTHING, job_id)
        if lack is None or not host_lack.is_lasting(lack, self.settings.home, gpus):
            return False
        with self.database.write() as session:
            wait_reasons.postpone(session, EVERYTHING, job_id)
        return True

    def _settled(self, claimed: Claim) -> Claim | None:
        """The claim, if its COMMIT reached the database; asks until the lease would expire."""
        deadline = time.monotonic() + self.settings.lease_seconds
        while True:
            try:
                with self.database.write() as session:
                    return claimed if claims.is_committed(session, claimed) else None
            except DBAPIError as error:
                if not is_outage(error) or time.monotonic() > deadline or SHUTDOWN.is_requested():
                    raise
                log.warning("claim.unconfirmed", error=str(error.orig))
                time.sleep(self.settings.outage_retry_seconds)

    def _enqueue_if_due(self, job_id: str) -> None:
        """Send the next stage at once, without the reconciler; a retry waits until it is due."""
        with self.database.read() as session:
            message = messages.message_if_due(session, job_id)
        if message is not None and not self.enqueue(message):
            log.warning("broker.unreachable")

    def _complete_tracking(self, job_id: str) -> None:
        with self.database.read() as session:
            row = session.get(JobRow, job_id)
        if row is not None and row.spec_version > SPEC_VERSION:
            log.warning("job.version_unsupported", spec_version=row.spec_version)
        elif row is not None and row.state in ENDED and not row.tracking_final:
            workspace = self.settings.workspace(job_id)
            shipper.sync(self.database, self.tracker, job_id, workspace)


def _start_of(client: ForkClient | None) -> Start:
    return spawn.new_interpreter if client is None else client.start


@lru_cache
def job_runner() -> JobRunner:
    devices = gpus()
    malloc = allocator.find(get_settings().malloc, with_gpu=bool(devices))
    settings = get_settings().model_copy(update={"malloc": malloc})
    database = Database(settings.sqlalchemy_url)
    tracker = shipper.make_tracker(settings)
    publisher = broker.make_app(app.conf.broker_url, publisher=True)
    client = fork_client.make(settings, devices)
    start = _start_of(client)
    return JobRunner(
        settings=settings,
        database=database,
        tracker=tracker,
        supervisor=Supervisor(database, settings, tracker, start=start, shutdown=SHUTDOWN),
        enqueue=partial(broker.enqueue, publisher),
        gpus=devices,
        fork_client=client,
    )


@signals.worker_process_init.connect
def _prepare_fork_server(**_: Any) -> None:
    job_runner().prepare_fork_server()


@lru_cache
def preview_maker() -> Previews:
    """With the fork server of the process's jobs."""
    jobs_of = job_runner()
    return Previews(
        jobs_of.database, jobs_of.settings, start=_start_of(jobs_of.fork_client), shutdown=SHUTDOWN
    )


@lru_cache
def predictor() -> Predictions:
    """With the fork server of the process's jobs."""
    jobs_of = job_runner()
    return Predictions(
        jobs_of.database,
        jobs_of.settings,
        jobs_of.gpus,
        start=_start_of(jobs_of.fork_client),
        shutdown=SHUTDOWN,
    )


def _wake_job(job_id: str, worker_id: str) -> None:
    predictor().close()  # the job may need its device
    job_runner().wake(job_id, worker_id, _queues())


def _wake_preview(preview_id: str, worker_id: str) -> None:
    preview_maker().wake(preview_id, worker_id)
    job_runner().prepare_fork_server()


def _queues() -> list[str]:
    return list(app.amqp.queues.consume_from)


_BY_KIND: Final[Mapping[MessageKind, Callable[[str, str], None]]] = {
    MessageKind.JOB: _wake_job,
    MessageKind.PREVIEW: _wake_preview,
    MessageKind.PREDICTION: lambda _id, worker_id: predictor().wake(worker_id, _queues()),
    MessageKind.SEARCH: lambda search_id, _worker: job_runner().ship_search(search_id),
    MessageKind.MLFLOW_REMOVAL: lambda run_id, _worker: job_runner().remove_run(run_id),
}


@app.task(name=WAKE_TASK, bind=True)
def wake(self: Any, kind: str, id_: str) -> None:
    _BY_KIND[MessageKind(kind)](id_, self.request.hostname)
