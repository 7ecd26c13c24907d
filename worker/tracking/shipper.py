"""Sends a job's metrics from SQL to the tracker: one job is one run, over all its attempts.

Only what is registered in SQL is sent, so nothing of a stale attempt arrives there. Whatever the
tracker misses while it is unreachable stays in SQL until it can be sent.
"""

import threading
import time
from collections.abc import Collection, Iterable
from pathlib import Path
from typing import Final, Self

import structlog

from service.contract.spec import splits, tracking_names
from service.contract.spec.dataset import UploadDataset
from service.contract.spec.spec import JobSpec
from service.contract.states import JobState, Stage
from service.settings import Settings
from service.store.database import Database
from service.store.tables.jobs import JobRow
from service.store.tracking import jobs as store
from service.store.tracking.jobs import TrackedJob
from service.system import escaping
from service.system.safe_files import is_inside
from worker.tracking import run_content, runs, search_shipper
from worker.tracking.trackers import (
    JOB_ID_TAG,
    MODEL_FOLDER,
    Description,
    MlflowTracker,
    NewRun,
    NullTracker,
    Tracker,
    TrackerRejectedError,
    TrackerUnreachableError,
    log_missing,
)

MODEL_CARD: Final = f"{MODEL_FOLDER}README.md"
"""Written by `publish`: if it exists, the model is finished."""
_ROWS_PER_PAGE: Final = 100
_LONGEST_PAUSE: Final = 60.0
_EXIT_SECONDS: Final = 8.0
_SYNC_SECONDS: Final = 120.0
_log = structlog.get_logger(__name__)


def make_tracker(settings: Settings) -> Tracker:
    """MLflow if the operator has configured it; otherwise a tracker that stores nothing."""
    if settings.mlflow_uri is None:
        return NullTracker()
    return MlflowTracker(
        settings.mlflow_uri, public_url=settings.public_url, token=settings.mlflow_token
    )


def ensure_run(database: Database, tracker: Tracker, job_id: str) -> str | None:
    """The job's run, created if needed; None if the tracker is unreachable or stores nothing."""
    with database.read() as session:
        job = store.load(session, job_id)
    if job is None:
        return None
    try:
        return _run_of(database, tracker, job)
    except (TrackerUnreachableError, TrackerRejectedError) as error:
        _log.warning("mlflow.run_unavailable", job_id=job_id, error=str(error))
        return None


def sync(database: Database, tracker: Tracker, job_id: str, workspace: Path) -> bool:
    """Send everything that is missing; True if the run is complete and has the job's final status.

    An unreachable tracker raises nothing: if the job has ended, the reconciler enqueues it again
    later. Starts no new request after two minutes.
    """
    shipper = _Shipper(database, tracker, job_id, workspace)
    try:
        return shipper.finish(time.monotonic() + _SYNC_SECONDS)
    except TrackerUnreachableError as error:
        _log.warning("mlflow.unreachable", job_id=job_id, error=str(error))
        return _end_or_postpone(database, job_id, is_rejected=False)
    except TrackerRejectedError as error:
        _log.warning("mlflow.rejected", job_id=job_id, error=str(error))
        return _end_or_postpone(database, job_id, is_rejected=True)


class BackgroundShipper:
    """Sends metrics on a thread while a stage runs, so that a slow MLflow does not delay it."""

    def __init__(
        self,
        database: Database,
        tracker: Tracker,
        job_id: str,
        workspace: Path,
        interval: float = 5.0,
    ) -> None:
        self._shipper = _Shipper(database, tracker, job_id, workspace)
        self._log = _log.bind(job_id=job_id)
        self._interval = interval
        self._stop = threading.Event()
        # A daemon, because a server that never responds must not keep the worker from exiting.
        self._thread = threading.Thread(target=self._run, name=f"shipping-{job_id}", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(_EXIT_SECONDS)

    def _run(self) -> None:
        pause = 0.0
        while not self._stop.wait(pause):
            longer = min(max(2 * pause, self._interval), _LONGEST_PAUSE)
            pause = self._interval if self._ship() else longer
        self._ship()

    def _ship(self) -> bool:
        try:
            self._shipper.ship(time.monotonic() + _EXIT_SECONDS)
        except (TrackerUnreachableError, TrackerRejectedError) as error:
            self._log.warning("mlflow.unreachable", error=str(error))
            return False
        except Exception:
            # If the database is unreachable too, the supervisor's heartbeat notices it.
            self._log.exception("mlflow.shipping_failed")
            return False
        return True


class _Shipper:
    """Used by `BackgroundShipper` and `sync`: everything is read from SQL and may be sent twice."""

    def __init__(self, database: Database, tracker: Tracker, job_id: str, workspace: Path) -> None:
        self._database = database
        self._tracker = tracker
        self._job_id = job_id
        self._workspace = workspace
        self._described: Description | None = None
        self._has_status = False

    def ship(self, until: float) -> None:
        """Send what has been recorded since the last call."""
        job = self._load()
        if job is None or job.final:
            return
        run_id = _run_of(self._database, self._tracker, job)
        if run_id is None:
            return
        if not self._has_status:  # an earlier attempt may have ended the run before a retry
            self._set_status(job, run_id)
            self._has_status = True
        self._send(job, run_id, until)

    def finish(self, until: float) -> bool:
        """Send the rest and, if the job has ended, its files and its final status."""
        job = self._load()
        if job is None or job.final:
            return True
        run_id = self._run_to_finish(job)
        if run_id is not None:
            self._send(job, run_id, until)
        if job.ended_at is None:
            return False
        if run_id is not None:
            sent = self._send_files(job, run_id, until)
            self._tracker.log_points(run_id, list(run_content.final_points(job)))
            self._set_status(job, run_id)
            if job.state == JobState.SUCCEEDED and MODEL_CARD in sent:
                self._add_model(job, run_id)
        with self._database.write() as session:
            return store.finish(session, job.id, job.ended_at)

    def _add_model(self, job: TrackedJob, run_id: str) -> None:
        try:
            self._tracker.add_model(run_id, run_content.finished_model(job))
        except TrackerRejectedError as error:  # for example a server that is too old
            _log.warning("mlflow.model_rejected", job_id=job.id, error=str(error))

    def _set_status(self, job: TrackedJob, run_id: str) -> None:
        tags = run_content.END_TAGS
        runs.set_status(self._tracker, run_id, job, self._load, run_content.end_tags, tags)

    def _load(self) -> TrackedJob | None:
        with self._database.read() as session:
            return store.load(session, self._job_id)

    def _run_to_finish(self, job: TrackedJob) -> str | None:
        """No run is created for a job that was cancelled before it did anything."""
        if job.state == JobState.CANCELLED and job.run_id is None and job.metric_seq == 0:
            spec = JobSpec.accepted(job.spec)
            # A run may exist whose id was lost with the response that created it.
            tags = {JOB_ID_TAG: job.id}
            if not (job.claimed and self._tracker.find(_experiment(job, spec), tags)):
                return None
        return _run_of(self._database, self._tracker, job)

    def _send(self, job: TrackedJob, run_id: str, until: float) -> None:
        # Metrics first: a full artifact store must not delay them.
        self._send_metrics(job, run_id, until)
        self._describe(job, run_id)

    def _describe(self, job: TrackedJob, run_id: str) -> None:
        """Send the description if it has changed, and again if the job has meanwhile: another
        writer may have described its end."""
        now: TrackedJob | None = self._with_parent(job)
        while now is not None:
            home = self._workspace.parents[1]  # <home>/jobs/<job>
            description = run_content.description(now, self._file_names(now), home)
            if description == self._described:
                return
            self._tracker.describe(run_id, description)
            self._described = description
            now = self._load()

    def _with_parent(self, job: TrackedJob) -> TrackedJob | None:
        """The job, once its search has a run."""
        if job.search_id is None or job.parent_run_id is not None:
            return job
        search_shipper.ensure_run(self._database, self._tracker, job.search_id)
        return self._load()

    def _file_names(self, job: TrackedJob) -> dict[str, str]:
        spec = JobSpec.accepted(job.spec)
        if not isinstance(spec.dataset, UploadDataset):
            return {}
        with self._database.read() as session:
            return store.file_names(session, splits.items(spec))

    def _send_metrics(self, job: TrackedJob, run_id: str, until: float) -> None:
        cursor = job.tracked_seq
        while cursor < job.metric_seq:
            if time.monotonic() > until:
                raise TrackerUnreachableError("too slow: the other metrics are sent next time")
            with self._database.read() as session:
                rows = store.metrics_after(session, job.id, cursor, _ROWS_PER_PAGE)
            if not rows:
                return  # the job was deleted in the meantime
            self._tracker.log_points(
                run_id, [point for row in rows for point in run_content.points(row)]
            )
            cursor = rows[-1].seq
            with self._database.write() as session:
                store.advance(session, job.id, cursor)

    def _send_files(self, job: TrackedJob, run_id: str, until: float) -> Collection[str]:
        """Send missing files; the names of the files the run has now."""
        log_model = JobSpec.accepted(job.spec).tracking.log_model
        with self._database.read() as session:
            rows = store.artifacts(session, job.id)
        files = {
            row.name: row.path for row in rows if log_model or not row.name.startswith(MODEL_FOLDER)
        }
        present = {
            name: self._workspace / path
            for name, path in files.items()
            if is_inside(self._workspace, path)
        }
        changed = _changed(job, present)
        try:
            complete = log_missing(self._tracker, run_id, present, until, changed)
        except (FileNotFoundError, TrackerUnreachableError):
            if self._load() is not None:
                raise
            return ()  # the job was deleted in the meantime; its run still gets its status
        if not complete:
            raise TrackerUnreachableError("too slow: the other files are sent next time")
        return present


def _changed(job: TrackedJob, names: Iterable[str]) -> set[str]:
    """Files of a promoted checkpoint that the run may have in an earlier version of the same size:
    all except those that `publish` has sent."""
    if not (job.results.get(Stage.TRAIN) or {}).get("is_promoted"):
        return set()
    is_sent = (job.results.get(Stage.PUBLISH) or {}).get("mlflow_artifact_uri") is not None
    return {name for name in names if not (is_sent and name.startswith(MODEL_FOLDER))}


def _experiment(job: TrackedJob, spec: JobSpec) -> str:
    return tracking_names.experiment(job.project, spec.tracking.experiment_name)


def _run_of(database: Database, tracker: Tracker, job: TrackedJob) -> str | None:
    """The id of the job's run; None if the tracker stores nothing."""
    if job.run_id is not None:
        return job.run_id
    spec = JobSpec.accepted(job.spec)
    name = escaping.line(spec.tracking.run_name or spec.name or job.id)

    new = NewRun(_experiment(job, spec), name, {JOB_ID_TAG: job.id}, job.created_at)
    return runs.adopted(database, tracker, new, JobRow, job.id)


def _end_or_postpone(database: Database, job_id: str, *, is_rejected: bool) -> bool:
    """Try again later, or mark tracking as complete: after a week, or where the run rejects
    everything, for example because it was deleted."""
    with database.write() as session:
        job = store.load(session, job_id)
        if job is None or job.ended_at is None:
            return False
        wait = None if is_rejected else runs.retry_wait(job.seconds_since_end)
        if wait is None:
            return store.finish(session, job_id, job.ended_at)
        store.retry_in(session, JobRow, job_id, wait)
    return False
