"""Predictions in the database, and reads of them that bypass the service."""

import threading
import time
from contextlib import AbstractContextManager
from typing import Any

from sqlalchemy import update

from service.contract.failures import Failure
from service.contract.interactive.predictions import PredictionRequest, PredictionResult
from service.store.database import Database
from service.store.interactive import prediction_claims, predictions
from service.store.interactive.prediction_claims import PredictionClaim
from service.store.tables.interactive import PredictionRow
from tests.support.store.previews import done_by_thread

BASE = {"name_or_path": "org/model"}


def make_request(
    model: dict[str, Any] | None = None, prompt: str = "a", **options: Any
) -> PredictionRequest:
    """The continuation of a prompt, by a base model unless one is given."""
    body = {
        "model": model or BASE,
        "input": {"kind": "completion", "prompt": prompt},
        "options": options,
    }
    return PredictionRequest.model_validate(body)


def make_prediction(
    database: Database,
    project: str = "default",
    model: dict[str, Any] | None = None,
    prompt: str = "a",
    **options: Any,
) -> str:
    """The id of a queued prediction."""
    return ask(database, make_request(model, prompt, **options), project)


def ask(database: Database, request: PredictionRequest, project: str = "default") -> str:
    with database.write() as session:
        return predictions.insert(session, project, request)


def prediction(database: Database, prediction_id: str) -> PredictionRow:
    with database.read() as session:
        return session.get_one(PredictionRow, prediction_id)


def failure_of(database: Database, prediction_id: str) -> dict[str, Any]:
    """Why it failed; the test fails if it did not."""
    failure = prediction(database, prediction_id).failure
    assert failure is not None
    return failure


def put_prediction(database: Database, prediction_id: str, **values: Any) -> None:
    with database.write() as session:
        changed = update(PredictionRow).where(PredictionRow.id == prediction_id)
        session.execute(changed.values(**values))


def claim_prediction(
    database: Database, prediction_id: str, worker_id: str = "worker-1"
) -> PredictionClaim | None:
    with database.write() as session:
        return prediction_claims.claim(session, prediction_id, worker_id, lease_seconds=60)


def answered_by_thread(
    database: Database,
    ended: PredictionResult | Failure,
    texts: tuple[list[str], ...] = (),
    after: threading.Event | None = None,
) -> AbstractContextManager[None]:
    """While the context lasts, but not before `after`, predictions end like this at once, as if a
    worker answered them; before that their texts are written, one list after the other."""

    def answer(prediction_id: str) -> None:
        claimed = claim_prediction(database, prediction_id)
        assert claimed is not None
        for each in texts:
            with database.write() as session:
                prediction_claims.renew(session, claimed, 60, each)
            time.sleep(0.1)
        with database.write() as session:
            prediction_claims.end(session, claimed, ended)

    return done_by_thread(database, PredictionRow, answer, after)
