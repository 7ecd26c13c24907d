import threading
from collections.abc import Iterator
from contextlib import contextmanager

from sqlalchemy import event
from sqlalchemy.exc import OperationalError
from sqlalchemy.orm import Session

from service.store.database import Database
from service.store.tables.jobs import EventRow


class Flaky(Database):
    """The real database, sometimes unreachable, or losing the answer to a COMMIT."""

    def __init__(self, url: str) -> None:
        super().__init__(url)
        self.is_unreachable = False
        self.loses_answer_of: str | None = None
        self.then_unreachable_for = 0.0
        """Seconds, after the answer was lost."""
        self.refused = 0

    @contextmanager
    def write(self, *, audited: bool = True) -> Iterator[Session]:
        self._require_reachable()
        types: set[str] = set()

        def note(session: Session, *_: object) -> None:
            types.update(row.type for row in session.new if isinstance(row, EventRow))

        with super().write() as session:
            event.listen(session, "before_flush", note)
            yield session
        if self.loses_answer_of in types:
            self.loses_answer_of = None
            if self.then_unreachable_for:
                self.is_unreachable = True
                threading.Timer(self.then_unreachable_for, self._return).start()
            self._refuse()

    @contextmanager
    def read(self) -> Iterator[Session]:
        self._require_reachable()
        with super().read() as session:
            yield session

    def _return(self) -> None:
        self.is_unreachable = False

    def _require_reachable(self) -> None:
        if self.is_unreachable:
            self._refuse()

    def _refuse(self) -> None:
        self.refused += 1
        raise OperationalError("COMMIT", None, ConnectionError("server closed the connection"))
