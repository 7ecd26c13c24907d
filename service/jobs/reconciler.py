"""Sends due messages, ends expired leases, repairs whatever a crash left half done."""

from collections.abc import Callable
from functools import partial
from typing import NamedTuple

import structlog
from sqlalchemy.orm import Session

from service.contract.routing import CPU_QUEUE, Message, MessageKind
from service.jobs.background_loop import BackgroundLoop, BrokerUnreachableError
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database
from service.store.interactive import prediction_claims, preview_claims
from service.store.jobs import endings
from service.store.jobs import messages as job_messages
from service.store.scheduling import registration
from service.store.tracking import jobs, removals, searches

log = structlog.get_logger(__name__)

BATCH = 500
LOWEST_PRIORITY = 9


class Outbox(NamedTuple):
    name: str
    due: Callable[[Session, int], list[Message]]
    mark_sent: Callable[[Session, list[str], float], None]
    """What the broker accepted is not due again for this many seconds."""


class Reconciler(BackgroundLoop):
    name = "reconciler"

    def __init__(self, database: Database, dispatcher: Dispatcher, settings: Settings) -> None:
        super().__init__()
        self._database = database
        self._dispatcher = dispatcher
        self._settings = settings
        self._policy = endings.Policy(settings.crash_limit, settings.retry_backoff_seconds)
        previews, predictions = preview_claims.LEASES, prediction_claims.LEASES
        alive = settings.alive_seconds
        self._outboxes = (
            Outbox("previews", partial(previews.due, alive_seconds=alive), previews.mark_sent),
            Outbox(
                "predictions", partial(predictions.due, alive_seconds=alive), predictions.mark_sent
            ),
            Outbox("jobs", job_messages.due, job_messages.mark_sent),
            # Workers send unsent data of ended jobs and of searches to MLflow, and remove the files
            # of a run.
            Outbox("ended jobs", _last(MessageKind.JOB, jobs.untracked), jobs.postpone_tracking),
            Outbox(
                "searches",
                _last(MessageKind.SEARCH, searches.untracked),
                searches.postpone,
            ),
            Outbox(
                "removals from MLflow",
                _last(MessageKind.MLFLOW_REMOVAL, removals.due),
                removals.postpone,
            ),
        )

    def step(self) -> None:
        """All repairs once. Raises BrokerUnreachableError after the repairs that need no broker."""
        self._end_expired()
        self._remove_silent_workers()
        self._recover_previews_and_predictions()
        self._send_all_again_if_lost()
        for outbox in self._outboxes:
            self._send_due(outbox)

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
            silent = registration.remove_silent(session, self._settings.lease_seconds)
        for worker_id in silent:
            log.warning("worker.heartbeat_expired", worker=worker_id)

    def _recover_previews_and_predictions(self) -> None:
        for leases in (preview_claims.LEASES, prediction_claims.LEASES):
            with self._database.read() as session:
                is_needed = leases.has_stuck(session)
            if is_needed:
                with self._database.write() as session:
                    recovered = leases.recover(session)
                log.warning(f"{leases.kind}.recovered", ids=recovered)

    def _send_all_again_if_lost(self) -> None:
        if self._dispatcher.was_emptied():
            with self._database.write() as session:
                again = job_messages.send_all_again(session)
            log.info("broker.emptied", resent=again)

    def _send_due(self, outbox: Outbox) -> None:
        """Raises BrokerUnreachableError at the first message that the broker does not accept."""
        with self._database.read() as session:
            messages = outbox.due(session, BATCH)
        sent: list[str] = []
        for message in messages:
            if not self._dispatcher.enqueue(message):
                break
            sent.append(message.id)
        if sent:
            with self._database.write() as session:
                outbox.mark_sent(session, sent, self._settings.republish_seconds)
        if len(sent) < len(messages):
            waiting = len(messages) - len(sent)
            raise BrokerUnreachableError(f"{waiting} messages wait, of {outbox.name}")


def _last(
    kind: MessageKind, due: Callable[[Session, int], list[str]]
) -> Callable[[Session, int], list[Message]]:
    """Messages for these ids, which come after those of all jobs."""
    return lambda session, limit: [
        Message(kind, id_, CPU_QUEUE, LOWEST_PRIORITY) for id_ in due(session, limit)
    ]
