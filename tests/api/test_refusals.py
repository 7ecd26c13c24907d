"""What cannot succeed is refused before a job is made."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.store import workers
from tests.api.conftest import Server
from tests.api.factories import SPEC, spec
from tests.support.job_rows import WORKER, finished_job

_HUB = spec(hub={"model_id": "org/result"})
_NO_TOKEN = {
    "path": "hub",
    "code": "no_hub_token",
    "message": "No Hub token is set: set FINETUNE_HUB_TOKEN and restart the workers, or leave out "
    "`hub` and push later with `finetune publish`",
}


class TestHubToken:
    @pytest.mark.parametrize(
        ("have_tokens", "is_refused"),
        [
            ([], False),
            ([False], True),
            ([False, False], True),
            ([True], False),
            ([False, True], False),
        ],
    )
    def test_is_needed_by_some_live_worker(
        self, server: Server, have_tokens: list[bool], *, is_refused: bool
    ) -> None:
        with server.database.write() as session:
            for number, has_token in enumerate(have_tokens):
                worker = replace(WORKER, id=f"{number}@host", has_hub_token=has_token)
                workers.register(session, worker)
        assert server.client.post("/v1/jobs", json=SPEC).status_code == 201
        answer = server.client.post("/v1/jobs", json=_HUB)
        assert answer.status_code == (422 if is_refused else 201)
        if is_refused:
            assert answer.json()["errors"] == [_NO_TOKEN]

    def test_is_needed_to_push_later_or_from_a_clone(self, server: Server) -> None:
        job_id = finished_job(server.database)
        with server.database.write() as session:
            workers.register(session, replace(WORKER, has_hub_token=False))
        hub = {"model_id": "org/result"}
        answer = server.client.post(f"/v1/jobs/{job_id}/publish", json=hub)
        assert answer.status_code == 422
        message = "No Hub token is set: set FINETUNE_HUB_TOKEN and restart the workers"
        assert answer.json()["errors"] == [_NO_TOKEN | {"message": message}]
        assert server.client.get(f"/v1/jobs/{job_id}").json()["state"] == "succeeded"
        clone = server.client.post(f"/v1/jobs/{job_id}/clone", json={"hub": hub})
        assert clone.json()["errors"] == [_NO_TOKEN]


class TestTimeout:
    def test_more_than_the_operator_allows(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(server.settings, "longest_timeout_seconds", 60)
        assert server.client.post("/v1/jobs", json=SPEC | {"timeout_seconds": 60}).is_success
        answer = server.client.post("/v1/jobs", json=SPEC | {"timeout_seconds": 61})
        assert answer.status_code == 422
        assert answer.json()["errors"] == [
            {
                "path": "timeout_seconds",
                "code": "timeout_too_long",
                "message": "At most 60 s here (FINETUNE_LONGEST_TIMEOUT_SECONDS)",
            }
        ]


class TestMetricForBestModel:
    @pytest.mark.parametrize(
        ("metric", "evaluates", "status"),
        [("f1", "epoch", 201), ("f2", "epoch", 422), ("f2", "no", 201)],
    )
    def test_must_be_reported(
        self, client: httpx.Client, metric: str, evaluates: str, status: int
    ) -> None:
        training: dict[str, Any] = {"metric_for_best_model": metric, "eval_strategy": evaluates}
        dataset = SPEC["dataset"] | {"validation": "test"}
        answer = client.post("/v1/jobs", json=spec(training=training, dataset=dataset))
        assert answer.status_code == status
        if status == 422:
            [fault] = answer.json()["errors"]
            assert fault["path"] == "training.metric_for_best_model"
            assert "did you mean `f1`?" in fault["message"]
