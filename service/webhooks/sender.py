"""Sends due deliveries in the background: one thread reads and writes the database, others wait for
receivers."""

import queue
import random
import threading
import time
from collections import Counter
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.jobs.background_loop import RECONCILE_SECONDS, BackgroundLoop
from service.settings import Settings
from service.store.database import Database
from service.store.webhooks import deliveries
from service.store.webhooks.deliveries import Claimed, Lane, Outcome, Room
from service.webhooks.requests import Requests

log = structlog.get_logger(__name__)

MOST_AT_ONCE: Final = 32
MOST_OF_LANE: Final = 8
MOST_OF_PROJECT: Final = 16
"""Half of all: one project's slow receivers leave room for the others."""
_MOST_REMEMBERED: Final = 10_000
"""Receivers whose last try failed; beyond that those in specs are forgotten."""
_GATHERING_SECONDS: Final = 0.01
"""Outcomes that come so close together are written in one transaction."""
_LAST_SECONDS: Final = 3.0
"""Time for requests in flight when the sender stops."""


class WebhookSender(BackgroundLoop):
    """A delivery is one sender's until its lease ends."""

    name = "webhooks"

    def __init__(
        self,
        database: Database,
        settings: Settings,
        requests: Requests | None = None,
        poll_seconds: float = RECONCILE_SECONDS,
    ) -> None:
        super().__init__(period=0.0)  # a step waits for outcomes itself
        self._database = database
        self._poll_seconds = poll_seconds
        self._requests = requests or Requests(settings)
        self._outcomes: queue.SimpleQueue[Outcome] = queue.SimpleQueue()
        self._unwritten: list[Outcome] = []
        self._on_the_way: Counter[Lane] = Counter()
        self._failing: set[str] | None = None
        """Lanes; None: not read yet."""

    def run(self, stop: threading.Event) -> None:
        """Send until `stop` is set. What is on its way then is written if it ends soon; the rest is
        sent again after its lease."""
        super().run(stop)
        self._finish()
        self._requests.close()

    def step(self) -> None:
        self._round()
        self._gather(self._poll_seconds)

    def _round(self) -> None:
        """Write what has ended and claim as much again, in one transaction."""
        ended = self._unwritten
        if not ended:
            with self._database.read() as session:
                if not deliveries.is_due(session):
                    return
        left = self._on_the_way - Counter(_lane(outcome.claimed) for outcome in ended)
        failing = self._with_failing(ended)
        room = Room(MOST_AT_ONCE, MOST_OF_LANE, MOST_OF_PROJECT, left, failing)
        with self._database.write(audited=False) as session:
            # No secret: it spreads the tries of many deliveries.
            deliveries.settle_all(session, ended, random.random)
            claimed = deliveries.claim(session, room)
        self._on_the_way, self._failing = left, failing
        self._unwritten = []
        _log(ended)
        for one in claimed:
            self._on_the_way[_lane(one)] += 1
            self._start(one)

    def _start(self, claimed: Claimed) -> None:
        try:
            # Daemons: a slow receiver does not hold up the end of the process.
            threading.Thread(target=self._send, args=(claimed,), daemon=True).start()
        except RuntimeError as error:  # the machine's or the container's limit on threads
            self._outcomes.put(Outcome(claimed, error=f"the service has no thread left: {error}"))

    def _with_failing(self, ended: list[Outcome]) -> set[str]:
        """The failing lanes, now that these have ended."""
        failing = set() if self._failing is None else self._failing
        if self._failing is None or len(failing) > _MOST_REMEMBERED:
            with self._database.read() as session:
                failing = deliveries.failing_lanes(session)
        succeeded = {outcome.claimed.lane for outcome in ended if outcome.error is None}
        failed = {outcome.claimed.lane for outcome in ended if outcome.error is not None}
        return (failing - succeeded) | failed

    def _send(self, claimed: Claimed) -> None:
        try:
            outcome = self._requests.send(claimed)
        except Exception:
            # Without an outcome its place would stay taken.
            log.exception("webhook.send_failed", delivery=claimed.id)
            outcome = Outcome(claimed, error="internal error of the sender")
        self._outcomes.put(outcome)

    def _gather(self, seconds: float) -> None:
        """Wait at most `seconds` for the first outcome, and a moment for others."""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 or not self._outcomes.empty():
            try:
                self._unwritten.append(self._outcomes.get(timeout=max(left, 0.001)))
            except queue.Empty:
                return
            until = min(until, time.monotonic() + _GATHERING_SECONDS)

    def _finish(self) -> None:
        until = time.monotonic() + _LAST_SECONDS
        while len(self._unwritten) < self._on_the_way.total() and time.monotonic() < until:
            self._gather(until - time.monotonic())
        try:
            with self._database.write(audited=False) as session:
                deliveries.settle_all(session, self._unwritten, random.random)
        except SQLAlchemyError as error:
            log.warning("database.unreachable", loop=self.name, error=str(error.__cause__ or error))


def _lane(claimed: Claimed) -> Lane:
    return Lane(claimed.lane, claimed.project)


def _log(ended: list[Outcome]) -> None:
    for outcome in ended:
        if outcome.error is not None:
            log.info(
                "webhook.try_failed",
                delivery=outcome.claimed.id,
                webhook=outcome.claimed.webhook_id,
                status=outcome.status,
                error=outcome.error,
            )
