"""Rows of searches and their trials, as the reconciler writes them."""

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

from service.contract.search.spec import SEARCH_VERSION, SearchSpec
from service.contract.search.states import TrialState
from service.store.database import Database
from service.store.searches import state as searches
from service.store.tables.base import new_id
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow

START = datetime(2026, 1, 1, tzinfo=UTC)
TEMPLATE: dict[str, Any] = {
    "task": "question-answering",
    "model": {"name_or_path": "org/model"},
    "dataset": {"source": "hub", "name": "org/data", "validation": "validation"},
}
SPACE: dict[str, Any] = {"training.learning_rate": {"low": 1e-6, "high": 1e-3, "log": True}}


def search_spec(**changes: Any) -> dict[str, Any]:
    """The body of a valid search, with top-level fields replaced."""
    return {"job": TEMPLATE, "space": SPACE, "objective": {"metric": "f1"}, **changes}


def add_search(
    database: Database,
    *,
    template: dict[str, Any] = TEMPLATE,
    spec: dict[str, Any] | None = None,
    **columns: Any,
) -> str:
    """A queued search with the given columns instead of the usual ones; its id."""
    parsed = SearchSpec.model_validate(search_spec(job=template) | (spec or {}))
    row = SearchRow(
        **{
            "id": new_id("search"),
            "name": parsed.name,
            "task": parsed.job.task.type,
            "spec": searches.stored(parsed),
            "spec_version": SEARCH_VERSION,
            "created_at": START,
            "updated_at": START,
            "look_at": START,
            "state": "queued",
            "max_trials": parsed.max_trials,
            "counts": {},
            "best": [],
            "best_scores": [],
            **columns,
        }
    )
    with database.write() as session:
        session.add(row)
    return row.id


def add_trial(
    database: Database,
    search_id: str,
    number: int,
    *,
    state: TrialState = TrialState.COMPLETE,
    reports: Sequence[tuple[int, float | None]] = (),
    **columns: Any,
) -> None:
    """A trial, and what it reported: pairs of step and value."""
    trial = SearchTrialRow(
        **{
            "search_id": search_id,
            "number": number,
            "origin": "sampled",
            "state": state,
            "values": {"training.learning_rate": 10.0 ** -(3 + number % 3)},
            "attrs": {},
            "created_at": START,
            **columns,
        }
    )
    reported = [
        SearchReportRow(
            search_id=search_id,
            number=number,
            resource=step,
            # Each trial's reports come after those of the trials before it.
            seq=number * 1000 + place,
            step=step,
            value=value,
            decision="continue",
            at=START,
        )
        for place, (step, value) in enumerate(reports)
    ]
    with database.write() as session:
        session.add(trial)
        session.flush()
        session.add_all(reported)
