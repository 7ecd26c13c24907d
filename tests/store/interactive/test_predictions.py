"""Predictions, besides what test_brief_requests.py says of all requests of this kind."""

from typing import Any

import pytest

from service.contract.failures import Failure, FailureCode
from service.contract.interactive.predictions import (
    Choice,
    PredictionRequest,
    PredictionResult,
    Usage,
)
from service.errors import (
    InvalidPredictionError,
    ModelNotFoundError,
    PredictionNotFoundError,
    SourceJobError,
)
from service.store.database import Database, db_now
from service.store.interactive import prediction_claims, predictions
from service.store.interactive.leases import MOST_CRASHES
from service.store.interactive.prediction_claims import PredictionClaim
from service.store.scheduling.fleet import Fleet
from service.store.scope import EVERYTHING, Scope
from tests.support.factories import make_job
from tests.support.store.job_rows import add_checkpoint, finished_job
from tests.support.store.predictions import (
    ask,
    claim_prediction,
    make_prediction,
    prediction,
    put_prediction,
)
from tests.support.store.previews import register_worker
from tests.support.store.projects import make_project

FAILURE = Failure.from_code(FailureCode.OUT_OF_MEMORY, "no memory")
RESULT = PredictionResult(
    choices=[Choice(text="b", finish_reason="stop")],
    usage=Usage(prompt_tokens=1, completion_tokens=1),
)
TRAINED = {"train": {"output_dir": "attempts/1/model", "weights_sha256": "abc"}}
CHAT = {"task": {"type": "chat"}}
LORA = {**CHAT, "peft": {"method": "lora"}}


def chat_job(database: Database, **columns: Any) -> str:
    return finished_job(database, spec=CHAT, results=TRAINED, **columns)


def claimed(database: Database, prediction_id: str) -> PredictionClaim:
    found = claim_prediction(database, prediction_id)
    assert found is not None
    return found


def end(database: Database, mine: PredictionClaim, ended: PredictionResult | Failure) -> bool:
    with database.write() as session:
        return prediction_claims.end(session, mine, ended)


class TestInsert:
    def test_a_seed_and_the_step_are_settled(self, database: Database) -> None:
        job = chat_job(database)
        add_checkpoint(database, job, 5)
        add_checkpoint(database, job, 9)
        row = prediction(database, make_prediction(database, model={"job": job, "step": "last"}))
        request = PredictionRequest.model_validate(row.request)
        assert request.model.step == 9
        assert request.options.seed is not None

    def test_the_same_model_has_the_same_key_in_one_project_only(self, database: Database) -> None:
        other = make_project(database, "other")
        keys = [
            prediction(database, each).model_key
            for each in (
                make_prediction(database, prompt="a"),
                make_prediction(database, prompt="b", seed=1),
                make_prediction(database, model={"name_or_path": "org/another"}),
                make_prediction(database, other),
            )
        ]
        assert keys[0] == keys[1]
        assert len(set(keys)) == 3

    def test_a_finished_adapter_can_be_asked(self, sqlite_database: Database) -> None:
        job = finished_job(sqlite_database, spec=LORA, results=TRAINED)
        make_prediction(sqlite_database, model={"job": job})

    @pytest.mark.parametrize("step", [None, 3])
    def test_a_foreign_job_is_as_a_missing_one(
        self, sqlite_database: Database, step: int | None
    ) -> None:
        other = make_project(sqlite_database, "other")
        theirs = chat_job(sqlite_database, project_id=other)
        for job in (theirs, "job-1"):
            with pytest.raises(ModelNotFoundError) as raised:
                make_prediction(sqlite_database, model={"job": job, "step": step})
            assert raised.value.detail == f"There is no job {job}."

    def test_a_missing_checkpoint(self, sqlite_database: Database) -> None:
        job = chat_job(sqlite_database)
        with pytest.raises(ModelNotFoundError, match="has no checkpoint of step 3"):
            make_prediction(sqlite_database, model={"job": job, "step": 3})

    def test_a_model_that_was_removed_or_is_not_finished(self, sqlite_database: Database) -> None:
        pruned = chat_job(sqlite_database, workspace_pruned_at=db_now())
        for job, reason in (
            (pruned, "model_gone"),
            (make_job(sqlite_database), "job_not_ended"),
        ):
            with pytest.raises(SourceJobError) as raised:
                make_prediction(sqlite_database, model={"job": job})
            assert raised.value.extra["reason"] == reason

    def test_a_model_that_writes_no_text_takes_rows(self, sqlite_database: Database) -> None:
        model = {"job": finished_job(sqlite_database, results=TRAINED)}
        with pytest.raises(InvalidPredictionError, match="question-answering"):
            make_prediction(sqlite_database, model=model)
        rows = {"kind": "rows", "rows": [{"question": "a", "context": "b"}]}
        body = {"model": model, "input": rows}
        ask(sqlite_database, PredictionRequest.model_validate(body))
        with pytest.raises(InvalidPredictionError, match="of the task of a job"):
            ask(
                sqlite_database,
                PredictionRequest.model_validate(body | {"model": {"name_or_path": "a"}}),
            )

    def test_a_large_request_is_refused(self, sqlite_database: Database) -> None:
        with pytest.raises(InvalidPredictionError, match="1,048,576 bytes"):
            make_prediction(sqlite_database, prompt="a" * 1024**2)


class TestReads:
    def test_are_those_of_the_project(self, database: Database) -> None:
        mine = make_prediction(database)
        with database.read() as session:
            assert predictions.REQUESTS.get(session, Scope("default"), mine).id == mine
            assert predictions.progress(session, EVERYTHING, mine) == ("queued", [])
            for read in (predictions.REQUESTS.get, predictions.progress):
                with pytest.raises(PredictionNotFoundError):
                    read(session, Scope("other"), mine)
        with database.write() as session, pytest.raises(PredictionNotFoundError):
            predictions.cancel(session, Scope("other"), mine)

    def test_unfinished_ones_are_counted(self, database: Database) -> None:
        make_prediction(database)
        claim_prediction(database, make_prediction(database))
        end(database, claimed(database, make_prediction(database)), RESULT)
        with database.read() as session:
            found = predictions.REQUESTS.unfinished(session, EVERYTHING)
        assert found == {"queued": 1, "running": 1}


class TestClaim:
    def test_texts_and_result_are_written(self, database: Database) -> None:
        mine = claimed(database, make_prediction(database))
        with database.write() as session:
            assert prediction_claims.renew(session, mine, 60, ["a", "b"])
        with database.read() as session:
            found = predictions.progress(session, EVERYTHING, mine.id)
        assert found == ("running", ["a", "b"])
        assert end(database, mine, RESULT)
        assert not end(database, mine, FAILURE)
        row = prediction(database, mine.id)
        assert (row.state, row.result) == ("succeeded", RESULT.model_dump(mode="json"))

    def test_a_cancelled_one_is_lost_to_its_worker(self, database: Database) -> None:
        mine = claimed(database, make_prediction(database))
        with database.write() as session:
            assert predictions.cancel(session, Scope("default"), mine.id)
            assert not predictions.cancel(session, Scope("default"), mine.id)
            assert not prediction_claims.renew(session, mine, 60, ["a"])
        assert not end(database, mine, RESULT)
        assert prediction(database, mine.id).state == "cancelled"

    def test_making_room_for_a_job_is_not_a_crash(self, database: Database) -> None:
        mine = make_prediction(database)
        for _ in range(MOST_CRASHES + 1):
            taken = claimed(database, mine)
            with database.write() as session:
                assert prediction_claims.release(session, taken)
        assert prediction(database, mine).state == "queued"
        assert prediction(database, mine).crashes == 0

    def test_the_third_crash_is_the_end(self, database: Database) -> None:
        mine = make_prediction(database)
        for state in ("queued", "queued", "failed"):
            taken = claimed(database, mine)
            with database.write() as session:
                assert prediction_claims.crashed(session, taken, FAILURE)
            assert prediction(database, mine).state == state

    def test_the_oldest_waits_first(self, database: Database) -> None:
        made = [make_prediction(database) for _ in range(3)]
        claim_prediction(database, made[1])
        with database.read() as session:
            found = prediction_claims.waiting(session, 10)
        assert [each.id for each in found] == [made[0], made[2]]

    def test_a_running_one_takes_its_workers_slot(self, database: Database) -> None:
        register_worker(database, "worker-1", queue="predict")
        mine = make_prediction(database)

        def is_free() -> bool:
            with database.read() as session:
                (worker,) = Fleet.read(session.connection(), 30).workers
            return worker.is_free("predict")

        assert is_free()
        claim_prediction(database, mine)
        assert not is_free()


class TestMessages:
    def test_workers_for_predictions_come_first(self, database: Database) -> None:
        mine = make_prediction(database)
        register_worker(database, "worker-1")
        put_prediction(database, mine, next_publish_at=db_now(-1))

        def queues() -> list[tuple[str, str, int]]:
            with database.read() as session:
                found = prediction_claims.LEASES.due(session, 10, alive_seconds=30)
            return [(each.id, each.queue, each.priority) for each in found]

        assert queues() == [(mine, "cpu", 0)]
        register_worker(database, "worker-2", queue="predict")
        assert queues() == [(mine, "predict", 0)]
        with database.write() as session:
            prediction_claims.LEASES.mark_sent(session, [mine], 30)
        assert queues() == []
