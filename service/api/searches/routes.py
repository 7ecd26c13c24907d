"""Searches of hyper-parameters: submit, validate, list and read them."""

from typing import Annotated

from fastapi import APIRouter, Query, Response
from sqlalchemy.orm import Session

from service.api.http.dependencies import (
    DatabaseDep,
    ParsedBody,
    SearchId,
    ServicesDep,
    SettingsDep,
)
from service.api.http.principal import JobsRead, JobsWrite
from service.api.jobs.submission import Force, IdempotencyKey, PendingFiles, created
from service.api.openapi.document import SEARCH_BODY, problems
from service.api.schemas.searches import (
    BestTrials,
    Search,
    SearchList,
    SearchSummary,
    SearchValidation,
    SubmittedSearch,
    Trial,
    TrialList,
)
from service.api.searches import submission
from service.contract.fields import patterns
from service.contract.search.spec import MOST_TRIALS
from service.contract.search.states import TrialState
from service.contract.states import JobState
from service.store.scope import Scope
from service.store.searches import state as searches
from service.store.searches.state import TrialAndJob

router = APIRouter(prefix="/v1/searches", tags=["searches"])


@router.post(
    "",
    status_code=201,
    response_model=SubmittedSearch,
    summary="Submit a search",
    openapi_extra=SEARCH_BODY,
    responses={**created("search"), **problems(400, 401, 409, 413, 415, 422, 429, 503)},
)
def create_search(
    principal: JobsWrite,
    body: ParsedBody,
    services: ServicesDep,
    idempotency_key: IdempotencyKey = None,
    *,
    force: Force = False,
) -> Response:
    """Searches for the best values of fields of a job spec: each trial is a job. An invalid spec is
    answered with 422 and every fault at once. A project has at most 100 unfinished searches."""
    return submission.submit(services, principal.project, body, idempotency_key, force=force)


@router.post(
    "/validate",
    summary="Check a search without creating it",
    openapi_extra=SEARCH_BODY,
    responses=problems(400, 401, 413, 415, 422, 503),
)
def validate_search(
    principal: JobsRead,
    body: ParsedBody,
    services: ServicesDep,
    pending_file: PendingFiles = [],  # noqa: B006
    *,
    force: Force = False,
) -> SearchValidation:
    """Answers 200 with `valid: false` for a spec with faults. The `spec` of a valid one has the
    defaults of its task, such as `space` and `objective`."""
    found = submission.examine(body, services, principal.own, pending_file, force=force)
    if found.spec is None or found.faults:
        return SearchValidation(valid=False, spec=None, errors=found.faults)
    return SearchValidation(
        valid=True, spec=searches.stored(found.spec), errors=[], warnings=found.warnings
    )


@router.get("", summary="List searches", responses=problems(401, 422, 503))
def list_searches(
    principal: JobsRead,
    database: DatabaseDep,
    settings: SettingsDep,
    after: Annotated[
        str | None,
        Query(pattern=patterns.SEARCH_ID, description="The last id of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    state: Annotated[
        list[JobState],
        Query(max_length=2 * len(JobState), description="Searches in any of these states."),
    ] = [],  # noqa: B006
    task: Annotated[str | None, Query(max_length=64, pattern=patterns.NO_NUL)] = None,
    name: Annotated[str | None, Query(max_length=200, pattern=patterns.NO_NUL)] = None,
) -> SearchList:
    """Newest first."""
    wanted = searches.SearchFilter(tuple(state), task, name)
    with database.read() as session:
        rows, has_more = searches.list_searches(
            session, principal.scope, wanted, after=after, limit=limit
        )
    data = [SearchSummary.from_row(row, settings) for row in rows]
    return SearchList.from_items(data, has_more=has_more)


@router.get("/{search_id}", summary="One search", responses=problems(401, 404, 422, 503))
def get_search(
    principal: JobsRead, search_id: SearchId, database: DatabaseDep, settings: SettingsDep
) -> Search:
    """The search in full: its state, how many trials there are, the best so far, and its spec."""
    with database.read() as session:
        return Search.from_row(searches.get(session, principal.scope, search_id), settings)


@router.get(
    "/{search_id}/trials", summary="A search's trials", responses=problems(401, 404, 422, 503)
)
def list_trials(
    principal: JobsRead,
    search_id: SearchId,
    database: DatabaseDep,
    after: Annotated[
        int | None,
        Query(ge=0, le=MOST_TRIALS, description="The last number of the previous page."),
    ] = None,
    limit: Annotated[int, Query(ge=1, le=100)] = 20,
    state: Annotated[
        list[TrialState],
        Query(max_length=2 * len(TrialState), description="Trials in any of these states."),
    ] = [],  # noqa: B006
) -> TrialList:
    """In the order of their numbers, with what each reported at its rungs or evaluations."""
    with database.read() as session:
        found, has_more = searches.trials(
            session, principal.scope, search_id, states=state, after=after, limit=limit
        )
        data = _pages(session, principal.scope, search_id, found)
    return TrialList(
        data=data,
        first_id=data[0].trial if data else None,
        last_id=data[-1].trial if data else None,
        has_more=has_more,
    )


@router.get(
    "/{search_id}/best", summary="A search's best trials", responses=problems(401, 404, 422, 503)
)
def get_best_trials(principal: JobsRead, search_id: SearchId, database: DatabaseDep) -> BestTrials:
    """The best trial so far, or with several objectives those that no other trial beats in all of
    them; none before the first trial is complete."""
    with database.read() as session:
        row = searches.get(session, principal.scope, search_id)
        found = searches.trials_of(session, principal.scope, search_id, row.best)
        data = _pages(session, principal.scope, search_id, found)
        return BestTrials(objectives=Search.objectives_of(row), data=data)


def _pages(session: Session, scope: Scope, search_id: str, found: list[TrialAndJob]) -> list[Trial]:
    numbers = [each.trial.number for each in found]
    reports = searches.reports(session, scope, search_id, numbers)
    return [Trial.from_rows(each, reports[each.trial.number]) for each in found]
