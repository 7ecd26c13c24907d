"""Carries searches on: reads what their trials have done, decides, and writes what follows.

Any number of reconcilers may do it at once, and each may be killed at any time: a pass writes one
version of its search in one transaction, or nothing.
"""

from collections import OrderedDict
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import structlog
from sqlalchemy.exc import SQLAlchemyError

from service.contract.failures import Failure, FailureCode
from service.contract.states import ENDED, JobState
from service.errors import DomainError, QuotaExceededError
from service.jobs import removal
from service.jobs.background_loop import BackgroundLoop
from service.jobs.dispatch import Dispatcher
from service.searches.decide import decide
from service.searches.memory import Memory, Refusals
from service.searches.write import StaleError, send, write
from service.settings import Settings
from service.store.database import Database
from service.store.files import retention
from service.store.scope import EVERYTHING
from service.store.searches import state, trials
from service.store.searches.trials import Facts

log = structlog.get_logger(__name__)

_BATCH: Final = 1000
_MOST_REMEMBERED: Final = 100
_WAIT_SECONDS: Final = 10.0
"""After a quota, or a lack of the machine, refused a trial."""
_BUG_SECONDS: Final = 60.0


class SearchRunner(BackgroundLoop):
    """A thread of the reconciler's: a slow suggestion must not delay the repair of leases."""

    name = "searches"

    def __init__(
        self,
        database: Database,
        dispatcher: Dispatcher,
        settings: Settings,
        refusals: Refusals,
    ) -> None:
        super().__init__()
        self._database = database
        self._dispatcher = dispatcher
        self._settings = settings
        self._refusals = refusals
        self._memories: OrderedDict[str, Memory] = OrderedDict()

    def step(self) -> None:
        """Make one pass over every search that has not ended."""
        with self._database.read() as session:
            search_ids = trials.due(session, _BATCH)
        for search_id in search_ids:
            self._advance_safely(search_id)
        self._clean()

    def _advance_safely(self, search_id: str) -> None:
        try:
            with self._forgetting_what_fails(search_id):
                self._advance(search_id)
        except StaleError:
            pass  # it has changed since: the next pass sees how
        except QuotaExceededError as error:
            self._wait(search_id, error.code, error.detail, _WAIT_SECONDS)
        except DomainError as error:
            self._fail(search_id, error)
        except ImportError as error:
            self._wait(search_id, "sampler_unavailable", _missing(error), _WAIT_SECONDS)
        except SQLAlchemyError:
            raise
        except Exception as error:
            # One search must not stop the others.
            log.exception("search.failed_to_continue", search_id=search_id)
            self._wait(search_id, "internal", f"{type(error).__name__}: {error}", _BUG_SECONDS)

    @contextmanager
    def _forgetting_what_fails(self, search_id: str) -> Iterator[None]:
        """What is remembered may be ahead of what was written."""
        try:
            yield
        except BaseException:
            self._forget(search_id)
            raise

    def _advance(self, search_id: str) -> None:
        with self._database.read() as session:
            facts = trials.facts(session, search_id)
        if facts is None:
            self._forget(search_id)
            return
        memory = self._memory(search_id, facts.row.version)
        if memory is not None:
            self._continue(facts, memory)

    def _continue(self, facts: Facts, memory: Memory) -> None:
        search_id = facts.row.id
        plan = decide(memory, facts)
        if plan.is_empty:
            return
        with self._database.write(audited=False) as session:
            messages = write(session, facts.row, plan, memory, self._settings)
        send(self._dispatcher, messages)
        for made in plan.made:
            log.info("search.trial_made", search_id=search_id, trial=made.number)
        if plan.to in ENDED:
            log.info("search.ended", search_id=search_id, state=plan.to)
            self._forget(search_id)

    def _memory(self, search_id: str, version: int) -> Memory | None:
        """What is remembered of this version; None if there is a newer one."""
        known = self._memories.get(search_id)
        if known is None or known.version != version:
            with self._database.read() as session:
                stored = trials.read(session, search_id)
                if stored is None or stored.row.version != version:
                    return None
                known = Memory(stored, self._refusals)
            self._memories[search_id] = known
        self._memories.move_to_end(search_id)
        while len(self._memories) > _MOST_REMEMBERED:
            self._memories.popitem(last=False)
        return known

    def _forget(self, search_id: str) -> None:
        self._memories.pop(search_id, None)

    def _wait(self, search_id: str, code: str, message: str, seconds: float) -> None:
        with self._database.write(audited=False) as session:
            waiting = {"code": code, "message": message[:2000]}
            trials.postpone(session, search_id, seconds, waiting=waiting)

    def _fail(self, search_id: str, error: DomainError) -> None:
        """It cannot continue: data or a model was removed, or its project is archived."""
        failure = Failure.from_code(
            FailureCode.INVALID_OPTION,
            error.detail,
            action="Change what the message names, then submit the search again. Trials that have "
            f"finished are kept: see `finetune search best {search_id}`.",
        )
        with self._database.write(audited=False) as session:
            row = state.lock(session, EVERYTHING, search_id)
            if JobState(row.state) in ENDED or row.state == JobState.CANCELLING:
                return
            to = JobState.FAILED if row.state == JobState.QUEUED else JobState.CANCELLING
            state.move(session, row, to, failure=failure.model_dump(mode="json"))

    def _clean(self) -> None:
        """Remove the checkpoints of pruned trials."""
        with self._database.read() as session:
            found = trials.uncleaned(session, _BATCH)
        if not found:
            return
        folders: list[str] = []
        with self._database.write(audited=False) as session:
            retention.lock_products(session)
            for trial in found:
                if trial.job is not None:
                    folders += retention.prune_workspace(session, trial.job)
                trials.change_trial(session, trial.search_id, trial.number, {"is_cleaned": True})
        removal.remove_paths(self._database, self._settings.home, folders)


def _missing(error: ImportError) -> str:
    return (
        f"This sampler needs the package {error.name!r}, which the reconciler does not have: start "
        "the reconciler where the worker's packages are, or cancel the search and choose another "
        "`sampler`."
    )
