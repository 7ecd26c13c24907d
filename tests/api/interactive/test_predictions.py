"""POST /v1/jobs/{id}/predict: rows for a job's model; a thread is the worker."""

from typing import Any

import httpx

from service.contract.failures import Failure, FailureCode
from service.contract.interactive.predictions import PredictionResult
from service.store.tables.interactive import PredictionRow
from tests.api.conftest import Server
from tests.support.store.job_rows import add_checkpoint, finished_job
from tests.support.store.predictions import answered_by_thread, prediction
from tests.support.store.previews import register_worker

ROWS = [{"question": "Who?", "context": "Ann."}]
ANSWERS = [{"prediction": "Ann", "probability": 0.9}]
RESULT = PredictionResult(answers=ANSWERS, notices=["cut"])


def ask(server: Server, job_id: str, body: Any = None, **query: Any) -> httpx.Response:
    given = {"rows": ROWS} if body is None else body
    return server.client.post(f"/v1/jobs/{job_id}/predict", json=given, params=query)


def row(server: Server, answer: httpx.Response) -> PredictionRow:
    return prediction(server.database, answer.json()["id"])


def test_the_request_waits_for_the_answers(server: Server) -> None:
    register_worker(server.database)
    job_id = finished_job(server.database)
    with answered_by_thread(server.database, RESULT):
        answer = ask(server, job_id)
    body = answer.json()
    assert (answer.status_code, body["state"], body["answers"]) == (200, "succeeded", ANSWERS)
    assert (body["job"], body["step"], body["notices"]) == (job_id, None, ["cut"])
    assert (body["failure"], body["waiting"]) == (None, None)
    assert row(server, answer).request["input"] == {"kind": "rows", "rows": ROWS}
    again = server.client.get(answer.headers["Location"])
    assert (again.status_code, again.json()) == (200, body)


class TestPredict:
    def test_a_checkpoint(self, server: Server) -> None:
        job_id = finished_job(server.database)
        add_checkpoint(server.database, job_id, 3)
        answer = ask(server, job_id, {"rows": ROWS, "step": "last"}, wait=0)
        assert (answer.status_code, answer.json()["step"]) == (202, 3)
        unknown = ask(server, job_id, {"rows": ROWS, "step": 4}, wait=0)
        assert (unknown.status_code, unknown.json()["code"]) == (404, "model_not_found")

    def test_without_a_worker_no_request_waits(self, server: Server) -> None:
        answer = ask(server, finished_job(server.database), wait=60)
        assert (answer.status_code, answer.json()["state"]) == (202, "queued")
        assert answer.json()["waiting"].startswith("No live worker answers predictions")

    def test_a_failure_is_part_of_the_answer(self, server: Server) -> None:
        register_worker(server.database)
        failure = Failure.from_code(FailureCode.MISSING_COLUMN, "no column")
        with answered_by_thread(server.database, failure):
            answer = ask(server, finished_job(server.database))
        body = answer.json()
        assert (answer.status_code, body["state"]) == (200, "failed")
        assert (body["failure"]["code"], body["answers"]) == ("missing_column", None)

    def test_what_is_refused(self, server: Server) -> None:
        job_id = finished_job(server.database)
        cases: tuple[tuple[Any, str], ...] = (
            ({}, "rows"),
            ({"rows": []}, "rows"),
            ({"rows": ROWS * 101}, "rows"),
            ({"rows": ["a"]}, "rows[0]"),
            ({"rows": ROWS, "steps": 1}, "steps"),
            ([], ""),
            ({"rows": [*ROWS, {"question": "Who?"}]}, "rows[1].context"),
            ({"rows": [{"question": "Who?", "context": None}]}, "rows[0].context"),
            ({"rows": [{"question": 5, "context": "Ann."}]}, "rows[0].question"),
        )
        for body, path in cases:
            answer = ask(server, job_id, body)
            assert (answer.status_code, answer.json()["errors"][0]["path"]) == (422, path)

    def test_a_row_may_have_the_names_of_the_training_data(self, server: Server) -> None:
        dataset = {"source": "hub", "name": "squad", "columns": {"context": "passage"}}
        job_id = finished_job(server.database, spec={"dataset": dataset})
        for name in ("context", "passage"):
            answer = ask(server, job_id, {"rows": [{"question": "Who?", name: "Ann."}]}, wait=0)
            assert answer.status_code == 202

    def test_what_a_row_needs_is_reported(self, server: Server) -> None:
        job_id = finished_job(server.database)
        rows = [{"question": "Who?", "contxt": "Ann."}]
        (fault,) = ask(server, job_id, {"rows": rows}).json()["errors"]
        assert fault["code"] == "missing_field"
        assert fault["message"] == (
            "required, but not given; the row has `question`, `contxt`; rename `contxt` if that "
            "is it"
        )
        many = ask(server, job_id, {"rows": [{}] * 100}).json()["errors"]
        assert len(many) == 20

    def test_an_unknown_prediction(self, client: httpx.Client) -> None:
        for prediction_id in ("pred-0", "pred-x", "a"):
            answer = client.get(f"/v1/predictions/{prediction_id}")
            assert (answer.status_code, answer.json()["code"]) == (404, "prediction_not_found")
