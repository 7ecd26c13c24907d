"""New jobs: each is made once; concurrent requests share a transaction."""

import json
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, replace
from datetime import timedelta
from functools import partial
from hashlib import sha256
from typing import Generic, TypeVar

from sqlalchemy.orm import Session

from service.contract.routing import queue_for
from service.contract.spec import splits
from service.contract.spec.dataset import UploadDataset
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.contract.states import STAGE_ORDER
from service.jobs.dispatch import Dispatcher
from service.store.database import Database, clock, is_outage
from service.store.files import files
from service.store.jobs import create_calls, idempotency, lineage, messages, queries, state
from service.store.jobs.create_calls import Attempt
from service.store.jobs.state import NewJob
from service.store.projects import audit, quotas
from service.store.scope import Scope
from service.store.tables.jobs import JobRow
from service.store.tables.projects import DEFAULT_PROJECT

Item = TypeVar("Item")
Result = TypeVar("Result")


@dataclass(frozen=True)
class Submitted:
    job_id: str
    job: JobRow | None = None
    """None when another request with the same idempotency key, or of the same call, made it."""
    place: queries.Place | None = None

    @property
    def created(self) -> bool:
        return self.job is not None


class Submissions:
    """Makes jobs and sends their wake-up messages. One per process, used by all its threads."""

    def __init__(self, database: Database, dispatcher: Dispatcher) -> None:
        self._database = database
        self._dispatcher = dispatcher
        self._group = GroupCommit(self._make)

    def submit(
        self,
        spec: JobSpec,
        project_id: str = DEFAULT_PROJECT,
        *,
        idempotency_key: str | None = None,
        request_sha256: str | None = None,
        attempt: Attempt | None = None,
        cloned_from: str | None = None,
        notices: Sequence[Notice] = (),
    ) -> Submitted:
        """Make a job, whose history begins with `notices`; without `request_sha256` the spec itself
        is compared.

        Another attempt of the same call may have made the job: `Submitted.job` is None then. Raises
        IdempotencyKeyReusedError, IdempotencyInFlightError, DataGoneError when a file that
        the spec names does not exist, SourceJobError when another job's model does not, and
        QuotaExceededError and ProjectArchivedError where the project takes no such job.
        """
        by = audit.current()
        new = NewJob(state.new_job_id(), project_id, spec, cloned_from, notices, by)
        if by is not None:
            by.target, by.project_id = new.job_id, project_id
        if idempotency_key is not None:
            content = json.dumps(spec.model_dump(mode="json"), sort_keys=True)
            key, digest = idempotency_key, request_sha256 or sha256(content.encode()).hexdigest()
            made = self._make_once(
                new,
                partial(idempotency.earlier_job, key=key, request_sha256=digest),
                partial(idempotency.remember, key=key, request_sha256=digest),
            )
        elif attempt is not None:
            made = self._make_once(
                new,
                partial(create_calls.earlier_job, attempt=attempt),
                partial(create_calls.remember, attempt=attempt),
            )
        elif uploads(spec) or lineage.sources(spec):  # may wait for a removal
            (made,) = self._make([new])
        else:
            made = self._group.run(new)
        if made.job is not None:
            self._dispatcher.enqueue_soon(messages.message(made.job))
        return made

    def earlier(self, project_id: str, key: str, request_sha256: str) -> str | None:
        """The job that this key and request made; called before the body is validated.

        A spec that was valid then may be invalid now: a file may have been deleted. Raises
        IdempotencyKeyReusedError.
        """
        with self._database.read() as session:
            return idempotency.job_of(session, project_id, key, request_sha256)

    def attempt(self, request_sha256: str, count: int, received_at: float) -> Attempt:
        """An attempt after `count` earlier ones of the same call; `received_at` is by
        time.monotonic()."""
        with self._database.read() as session:
            now = clock(session)
        # How long it waited is measured after the clock was read, so that it never seems to have
        # begun later than it did: a later attempt may have made the job while this one waited.
        return Attempt(
            request_sha256, count, now - timedelta(seconds=time.monotonic() - received_at)
        )

    def job_of_call(self, project_id: str, attempt: Attempt) -> str | None:
        """The job that an earlier attempt made; called before the body is validated, as `earlier`
        is."""
        if not attempt.count:
            return None
        with self._database.write(audited=False) as session:
            return create_calls.earlier_job(session, project_id, attempt)

    def _make_once(
        self,
        new: NewJob,
        earlier_job: Callable[[Session, str], str | None],
        remember: Callable[..., None],
    ) -> Submitted:
        with self._database.write(audited=False) as session:
            earlier = earlier_job(session, new.project_id)
            if earlier is not None:
                return Submitted(earlier)
            (made,) = self._insert(session, [new])
            remember(session, new.project_id, job_id=new.job_id)
        return made

    def _make(self, new: Sequence[NewJob]) -> list[Submitted]:
        with self._database.write(audited=False) as session:
            return self._insert(session, new)

    def _insert(self, session: Session, new: Sequence[NewJob]) -> list[Submitted]:
        return insert(session, new, due_in=self._dispatcher.head_start)


def insert(session: Session, new: Sequence[NewJob], *, due_in: float) -> list[Submitted]:
    """Make jobs in a transaction of the caller's, who sends their messages after COMMIT; after
    `due_in` seconds the reconciler does. Raises DataGoneError, SourceJobError, QuotaExceededError
    and ProjectArchivedError."""
    for one in new:
        scope = Scope(one.project_id)
        lineage.use(session, scope, one.spec)
        files.use(session, scope, uploads(one.spec))
    arrivals = _arrivals(session, new)
    if any(arrival.has_limits for arrival in arrivals):
        new = _within_limits(session, new)
        arrivals = _arrivals(session, new)
    now = arrivals[-1].now
    rows = state.insert_all(session, new, now=now, due_in=due_in)
    lineage.note(session, [(one.job_id, one.spec) for one in new])
    audit.write_all(session, [one.by for one in new], now)
    made = []
    for row, arrival in zip(rows, arrivals, strict=True):
        mine = (row.priority, row.id)  # all were queued at the same time
        ahead = sum(r.queue == row.queue and (r.priority, r.id) < mine for r in rows)
        made.append(Submitted(row.id, row, queries.Place(arrival.position + ahead, now)))
    return made


def _arrivals(session: Session, new: Sequence[NewJob]) -> list[queries.Arrival]:
    wanted = [
        (one.project_id, queue_for(STAGE_ORDER[0], one.spec), one.spec.priority) for one in new
    ]
    found = {each: queries.arrival(session, *each) for each in dict.fromkeys(wanted)}
    return [found[each] for each in wanted]


def _within_limits(session: Session, new: Sequence[NewJob]) -> list[NewJob]:
    """The jobs with the priorities that their projects allow. Raises QueueQuotaError,
    PriorityQuotaError, ProjectArchivedError."""
    highest = quotas.require_queue_room(session, [one.project_id for one in new])
    return [
        replace(one, spec=quotas.allowed_priority(one.spec, highest.get(one.project_id)))
        for one in new
    ]


class GroupCommit(Generic[Item, Result]):
    """Runs the requests of several threads as one batch.

    Requests that arrive while a batch runs wait; one of them then runs all of them.
    """

    def __init__(self, do: Callable[[list[Item]], list[Result]]) -> None:
        """`do` raises if nothing was done, or a database error if that is unknown."""
        self._do = do
        self._lock = threading.Lock()
        self._turn = threading.Lock()
        self._waiting: list[tuple[Item, Future[Result]]] = []

    def run(self, given: Item) -> Result:
        """The result of `do` for this request, or what it raised."""
        mine: Future[Result] = Future()
        with self._lock:
            self._waiting.append((given, mine))
        with self._turn:
            if not mine.done():
                with self._lock:
                    batch, self._waiting = self._waiting, []
                self._do_all(batch)
        return mine.result()

    def _do_all(self, batch: list[tuple[Item, Future[Result]]]) -> None:
        try:
            made = self._do([given for given, _ in batch])
        except BaseException as error:
            if len(batch) == 1 or is_outage(error):
                for _, future in batch:
                    future.set_exception(error)
                return
            # One bad request must not fail the rest of the batch.
            for one in batch:
                self._do_all([one])
            return
        for (_, future), result in zip(batch, made, strict=True):
            future.set_result(result)


def uploads(spec: JobSpec) -> list[str]:
    """Ids of the uploaded files that the job reads."""
    return splits.items(spec) if isinstance(spec.dataset, UploadDataset) else []
