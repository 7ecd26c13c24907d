"""Sends due messages, ends expired leases, repairs whatever a crash left half done."""

import threading
from collections.abc import Callable
from dataclasses import dataclass

import structlog
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.orm import Session

from service.contract.routing import CPU_QUEUE
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store import (
    endings,
    jobs,
    mlflow_removals,
    prediction_claims,
    preview_claims,
    search_tracking,
    workers,
)
from service.store.database import Database

log = structlog.get_logger(__name__)

BATCH = 500
MAX_BACKOFF_SECONDS = 10.0
LOWEST_PRIORITY = 9


@dataclass
class Outage:
    """An outage of `service`: logged when it begins and ends; the waits in between grow."""

    service: str
    failures: int = 0

    def happened(self, error: str, base: float) -> float:
        """Seconds to wait before the next try."""
        self.failures += 1
        wait = min(MAX_BACKOFF_SECONDS, base * 2.0 ** min(self.failures, 10))
        log.warning(
            f"{self.service}.unreachable", error=error, retry_in=wait, failures=self.failures
        )
        return wait

    def over(self) -> None:
        if self.failures:
            log.info(f"{self.service}.reachable", failures=self.failures)
        self.failures = 0


class BrokerUnreachableError(Exception):
    """The broker did not accept a message; its job stays due in the database."""


class Reconciler:
    """Any number may run at once: every repair is idempotent."""

    def __init__(self, database: Database, dispatcher: Dispatcher, settings: Settings) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._settings = settings
        self._policy = endings.Policy(settings.crash_limit, settings.retry_backoff_seconds)
        self._database_outage = Outage("database")
        self._broker_outage = Outage("broker")

    def run(self, stop: threading.Event) -> None:
        """Step until `stop` is set; an outage of database or broker only slows it down."""
        wait = 0.0
        while not stop.wait(wait):
            wait = self._guarded_step()

    def _guarded_step(self) -> float:
        base = self._settings.reconcile_seconds
        try:
            self.step()
        except SQLAlchemyError as error:
            return self._database_outage.happened(str(error.__cause__ or error), base)
        except BrokerUnreachableError as error:
            self._database_outage.over()
            return self._broker_outage.happened(str(error), base)
        self._database_outage.over()
        self._broker_outage.over()
        return base

    def step(self) -> None:
        """All repairs once. Raises BrokerUnreachableError after the repairs that need no broker."""
        self._end_expired()
        self._remove_silent_workers()
        self._recover_previews()
        self._send_due_previews()
        self._recover_predictions()
        self._send_due_predictions()
        self._send_due()
        self._send_untracked()
        self._send_untracked_searches()
        self._send_mlflow_removals()

    def _end_expired(self) -> None:
        with self._database.read() as session:
            job_ids = endings.expired(session, BATCH)
        for job_id in job_ids:
            with self._database.write() as session:
                state = endings.expire(session, job_id, self._policy)
            if state is not None:
                log.warning("lease.expired", job_id=job_id, state=state)

    def _remove_silent_workers(self) -> None:
        with self._database.write() as session:
            gone = workers.remove_silent(session, self._settings.lease_seconds)
        for worker_id in gone:
            log.warning("worker.heartbeat_expired", worker=worker_id)

    def _recover_previews(self) -> None:
        with self._database.read() as session:
            is_needed = preview_claims.has_stuck(session)
        if is_needed:
            with self._database.write() as session:
                recovered = preview_claims.recover(session)
            log.warning("preview.recovered", ids=recovered)

    def _send_due_previews(self) -> None:
        seconds = self._settings.alive_seconds
        self._send_waiting(
            lambda session: preview_claims.due(session, BATCH, seconds), preview_claims.mark_sent
        )

    def _recover_predictions(self) -> None:
        with self._database.read() as session:
            is_needed = prediction_claims.has_stuck(session)
        if is_needed:
            with self._database.write() as session:
                recovered = prediction_claims.recover(session)
            log.warning("prediction.recovered", ids=recovered)

    def _send_due_predictions(self) -> None:
        seconds = self._settings.alive_seconds
        self._send_waiting(
            lambda session: prediction_claims.due(session, BATCH, seconds),
            prediction_claims.mark_sent,
        )

    def _send_due(self) -> None:
        if self._dispatcher.was_emptied():
            with self._database.write() as session:
                again = jobs.send_all_again(session)
            log.info("broker.emptied", resent=again)
        self._send_waiting(lambda session: jobs.due(session, BATCH), jobs.mark_sent)

    def _send_untracked(self) -> None:
        """A worker that wakes up for an ended job completes its MLflow run."""
        self._send_waiting(_last(jobs.untracked), jobs.postpone_tracking)

    def _send_untracked_searches(self) -> None:
        """A worker that wakes up for a search sends what its MLflow run lacks."""
        self._send_waiting(_last(search_tracking.untracked), search_tracking.postpone)

    def _send_mlflow_removals(self) -> None:
        """A worker that wakes up for a run removes its files."""
        self._send_waiting(_last(mlflow_removals.due), mlflow_removals.postpone)

    def _send_waiting(
        self,
        due: Callable[[Session], list[jobs.Message]],
        mark_sent: Callable[[Session, list[str], float], None],
    ) -> None:
        """Send what `due` reads. What the broker accepted is not due again for a while.

        Raises BrokerUnreachableError if it did not accept all.
        """
        with self._database.read() as session:
            messages = due(session)
        sent = self._send(messages)
        if sent:
            with self._database.write() as session:
                mark_sent(session, sent, self._settings.republish_seconds)
        if len(sent) < len(messages):
            raise BrokerUnreachableError(f"{len(messages) - len(sent)} messages wait")

    def _send(self, messages: list[jobs.Message]) -> list[str]:
        """Ids of the messages that the broker accepted; stops at the first refusal."""
        sent: list[str] = []
        for message in messages:
            if not self._dispatcher.enqueue(message.job_id, message.queue, message.priority):
                break
            sent.append(message.job_id)
        return sent


def _last(
    due: Callable[[Session, int], list[str]],
) -> Callable[[Session], list[jobs.Message]]:
    """Messages for these ids, which come after those of all jobs."""
    return lambda session: [
        jobs.Message(id_, CPU_QUEUE, LOWEST_PRIORITY) for id_ in due(session, BATCH)
    ]
