"""What a user can do to a search. The reconciler does the rest (service/searches/runner.py)."""

from typing import NamedTuple

from sqlalchemy.orm import Session

from service.contract.search.spec import MOST_TRIALS, SearchSpec
from service.contract.states import ENDED, JobState
from service.errors import SearchEndedError, SearchStateError
from service.jobs import removal
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import lineage, user_actions
from service.store.jobs import state as jobs
from service.store.projects import audit, quotas
from service.store.scope import Scope
from service.store.searches import state as searches
from service.store.tables.searches import SearchRow
from service.store.tracking import removals

_PAUSED = (JobState.PAUSING, JobState.PAUSED)


class Submitted(NamedTuple):
    search_id: str
    is_new: bool
    """Whether this request made it, and not an earlier one with the same Idempotency-Key."""


def submit(
    database: Database,
    project_id: str,
    spec: SearchSpec,
    *,
    idempotency_key: str | None = None,
    request_sha256: str | None = None,
) -> Submitted:
    """Make a search from a spec that was checked. Raises IdempotencyKeyReusedError,
    ProjectArchivedError, TooManySearchesError."""
    with database.write() as session:
        if idempotency_key is not None and request_sha256 is not None:
            # Locked, so that a request with the same key at the same time waits for this one.
            quotas.locked(session, project_id)
            earlier = searches.of_key(session, project_id, idempotency_key, request_sha256)
            if earlier is not None:
                return Submitted(earlier, is_new=False)
        row = searches.insert(session, project_id, spec, idempotency_key, request_sha256)
        audit.about(row.id)
        audit.inside(project_id)
    return Submitted(row.id, is_new=True)


def cancel(database: Database, scope: Scope, search_id: str) -> JobState:
    """End the search; its trials that have not ended are cancelled. Returns the new state.

    Raises SearchNotFoundError, and SearchEndedError when there is nothing left to cancel.
    """
    with database.write() as session:
        row = _living(session, scope, search_id)
        state = JobState(row.state)
        if state is JobState.CANCELLING:
            return state
        to = JobState.CANCELLED if state is JobState.QUEUED else JobState.CANCELLING
        return JobState(searches.move(session, row, to).state)


def pause(database: Database, scope: Scope, search_id: str) -> JobState:
    """Pause the search: its running trials are paused at checkpoints. Returns the new state.

    Raises SearchNotFoundError, SearchEndedError, and SearchStateError while it is cancelled.
    """
    with database.write() as session:
        row = _not_cancelling(session, scope, search_id)
        state = JobState(row.state)
        if state in _PAUSED:
            return state
        to = JobState.PAUSED if state is JobState.QUEUED else JobState.PAUSING
        return JobState(searches.move(session, row, to).state)


def resume(database: Database, scope: Scope, search_id: str) -> JobState:
    """Continue a paused search with the trials that it has. Returns the new state.

    Raises SearchNotFoundError, SearchEndedError, and SearchStateError while it is cancelled.
    """
    with database.write() as session:
        row = _not_cancelling(session, scope, search_id)
        if JobState(row.state) not in _PAUSED:
            return JobState(row.state)
        to = JobState.QUEUED if row.started_at is None else JobState.RUNNING
        return JobState(searches.move(session, row, to).state)


def extend(database: Database, scope: Scope, search_id: str, max_trials: int) -> JobState:
    """Raise the number of trials; a search that has ended continues. Returns the new state.

    Asking again for the same number changes nothing. Raises SearchNotFoundError,
    SearchStateError while it is cancelled, or for fewer trials than it has, and for one that has
    ended ProjectArchivedError and TooManySearchesError.
    """
    with database.write() as session:
        row = searches.lock(session, scope, search_id)
        state = JobState(row.state)
        if state is JobState.CANCELLING:
            raise SearchStateError("The search is being cancelled.", state=row.state)
        if max_trials == row.max_trials:
            return state
        if max_trials < row.max_trials:
            raise SearchStateError(
                f"The search has {row.max_trials:,} trials and cannot be made smaller, to "
                f"{max_trials:,}: cancel it to end it now.",
                state=row.state,
            )
        if state in ENDED:
            searches.require_room(session, row.project_id)
        row.max_trials = min(max_trials, MOST_TRIALS)
        row.outcome = None
        row.without_gain = 0
        session.flush()
        if state in ENDED:
            return JobState(searches.move(session, row, JobState.RUNNING).state)
        searches.changed(session, row)
        return state


def delete(database: Database, settings: Settings, scope: Scope, search_id: str) -> None:
    """Delete an ended search and its trials' jobs with their folders and their files in MLflow;
    what is on the Hub stays.

    Raises SearchNotFoundError; SearchStateError if it has not ended, or the user runs one of its
    jobs again; JobInUseError while an unfinished job begins with the model of one.
    """
    with database.write() as session:
        row = searches.lock(session, scope, search_id)
        if JobState(row.state) not in ENDED:
            raise SearchStateError(
                f"Only an ended search can be deleted, so cancel it first; this one is "
                f"{row.state}.",
                state=row.state,
            )
        audit.inside(row.project_id)
        folders = [
            _remove_job(session, scope, job_id)
            for job_id, _ in searches.jobs_of(session, scope, search_id)
        ]
        removals.schedule(session, row.mlflow_run_id, is_final=row.tracking_final)
        session.delete(row)
    removal.remove_paths(database, settings.home, [folder for folder in folders if folder])


def _remove_job(session: Session, scope: Scope, job_id: str) -> str | None:
    row = jobs.lock(session, scope, job_id)
    if row is None:
        return None
    if JobState(row.state) not in ENDED:
        raise SearchStateError(
            f"Job {job_id} of the search is {row.state}: cancel it first.", state=row.state
        )
    lineage.require_unused(session, scope, job_id)
    return user_actions.remove(session, row)


def _living(session: Session, scope: Scope, search_id: str) -> SearchRow:
    row = searches.lock(session, scope, search_id)
    if JobState(row.state) in ENDED:
        raise SearchEndedError(f"The search has already ended: {row.state}.", state=row.state)
    return row


def _not_cancelling(session: Session, scope: Scope, search_id: str) -> SearchRow:
    row = _living(session, scope, search_id)
    if row.state == JobState.CANCELLING:
        raise SearchStateError("The search is being cancelled.", state=row.state)
    return row
