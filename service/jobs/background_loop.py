"""The shape of every background loop of the reconciler: run once, wait, and wait longer in an
outage."""

import threading
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import ClassVar, Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

log = structlog.get_logger(__name__)

RECONCILE_SECONDS: Final = 1.0
"""The usual period."""
_FIRST_BACKOFF_SECONDS: Final = 1.0
_LONGEST_BACKOFF_SECONDS: Final = 10.0


class BrokerUnreachableError(Exception):
    """The broker did not accept a message, which stays due in the database."""


@dataclass
class Outage:
    """An outage of `service`: its end is logged once, and the waits between the tries grow."""

    loop: str
    service: str
    failures: int = 0

    def happened(self, error: str) -> float:
        """Seconds to wait before the next try."""
        wait = min(_LONGEST_BACKOFF_SECONDS, _FIRST_BACKOFF_SECONDS * 2.0 ** min(self.failures, 10))
        self.failures += 1
        log.warning(
            f"{self.service}.unreachable",
            loop=self.loop,
            error=error,
            retry_in=wait,
            failures=self.failures,
        )
        return wait

    def over(self) -> None:
        if self.failures:
            log.info(f"{self.service}.reachable", loop=self.loop, failures=self.failures)
        self.failures = 0


class BackgroundLoop(ABC):
    """Any number may run at once: every step is idempotent, or one process's by a lease."""

    name: ClassVar[str]

    def __init__(self, period: float = RECONCILE_SECONDS) -> None:
        """`period`: seconds between the end of a step and the beginning of the next."""
        self._period = period
        self._database_outage = Outage(self.name, "database")
        self._broker_outage = Outage(self.name, "broker")

    @abstractmethod
    def step(self) -> None:
        """One round. Whatever it raises, it is called again."""

    def run(self, stop: threading.Event) -> None:
        """Step until `stop` is set; an outage of database or broker only slows it down."""
        wait = 0.0
        while not stop.wait(wait):
            wait = self._guarded_step()

    def _guarded_step(self) -> float:
        """Seconds to wait before the next step."""
        try:
            self.step()
        except SQLAlchemyError as error:
            return self._database_outage.happened(str(error.__cause__ or error))
        except BrokerUnreachableError as error:
            self._database_outage.over()
            return self._broker_outage.happened(str(error))
        except Exception:
            # The process has other loops, and would run on without this one.
            log.exception("loop.step_failed", loop=self.name)
            return max(self._period, _LONGEST_BACKOFF_SECONDS)
        self._database_outage.over()
        self._broker_outage.over()
        return self._period
