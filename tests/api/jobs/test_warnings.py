"""Warnings in the answers to a POST, and as the new job's first events."""

from dataclasses import replace
from typing import Any

import httpx
import pytest

from service.api.faults.walk import models_in
from service.api.jobs.warnings import _HIGHEST_RATE_OF_METHOD
from service.contract.spec.spec import JobSpec
from service.store.scheduling import registration
from tests.api.conftest import Server
from tests.api.factories import SPEC, spec
from tests.support.store.job_rows import WORKER

_GPU = {"type": "cuda", "index": 0, "uuid": "GPU-1", "name": "a GPU", "mig": False}
_MIG = {**_GPU, "mig": True}
_SHORT: dict[str, Any] = spec(training={"max_steps": 20, "logging_steps": 50})
_NO_LOSS = {
    "path": "training.logging_steps",
    "code": "steps_not_reached",
    "message": "the training has 20 steps, and its loss is reported every 50 steps: no loss will "
    "be shown; set `training.logging_steps` to at most 20, or to a ratio such as 0.05",
}


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


def register(server: Server, *devices: dict[str, Any], name: str = "one@host") -> None:
    with server.database.write() as session:
        registration.register(session, replace(WORKER, id=name, devices=list(devices)))


def notices(client: httpx.Client, job_id: str) -> list[dict[str, Any]]:
    events = client.get(f"/v1/jobs/{job_id}/events").json()["data"]
    return [event["data"] for event in events if event["type"] == "notice"]


class TestAnswers:
    def test_none_for_a_usual_spec(self, client: httpx.Client) -> None:
        for path in ("/v1/jobs", "/v1/jobs/validate"):
            assert client.post(path, json=SPEC).json()["warnings"] == []

    def test_each_is_a_notice_of_the_new_job(self, client: httpx.Client) -> None:
        assert client.post("/v1/jobs/validate", json=_SHORT).json()["warnings"] == [_NO_LOSS]
        job = client.post("/v1/jobs", json=_SHORT).json()
        assert job["warnings"] == [_NO_LOSS]
        place = {"path": _NO_LOSS["path"], "code": _NO_LOSS["code"]}
        noticed = [{"message": _NO_LOSS["message"], "data": place}]
        assert notices(client, job["id"]) == noticed
        clone = client.post(f"/v1/jobs/{job['id']}/clone", json={}).json()
        assert clone["warnings"] == [_NO_LOSS]
        assert notices(client, clone["id"]) == noticed

    @pytest.mark.parametrize(
        ("metric", "greater", "message"),
        [
            (
                "f1",
                False,
                "a greater `f1` is better, and `training.greater_is_better` is false: "
                "the evaluation with the lowest is taken for the best",
            ),
            (
                "loss",
                True,
                "a lower `loss` is better, and `training.greater_is_better` is true: "
                "the evaluation with the greatest is taken for the best",
            ),
            ("f1", True, None),
            ("loss", None, None),
        ],
    )
    def test_the_opposite_of_what_is_better(
        self, client: httpx.Client, metric: str, greater: bool | None, message: str | None
    ) -> None:
        training = {"metric_for_best_model": metric, "greater_is_better": greater}
        answer = client.post("/v1/jobs/validate", json=spec(training=training)).json()
        expected = {"path": "training.greater_is_better", "code": "worse_is_kept"}
        assert answer["warnings"] == ([{**expected, "message": message}] if message else [])

    @pytest.mark.parametrize(
        ("task", "is_warned"),
        [
            ({"null_score_diff_threshold": -1.5}, True),
            ({"null_score_diff_threshold": -1.5, "version_2_with_negative": True}, False),
            ({"null_score_diff_threshold": 0}, False),
        ],
    )
    def test_a_threshold_that_is_not_used(
        self, client: httpx.Client, task: dict[str, Any], *, is_warned: bool
    ) -> None:
        body = spec(task={"type": "question-answering", **task})
        found = client.post("/v1/jobs/validate", json=body).json()["warnings"]
        place = {"path": "task.null_score_diff_threshold", "code": "no_effect"}
        assert [{key: each[key] for key in place} for each in found] == [place] * is_warned

    @pytest.mark.parametrize(
        ("rate", "more", "highest"),
        [
            (2, {}, "adamw_torch_fused and all weights a `training.learning_rate` above 0.01 "),
            (0.01, {}, None),
            (0.02, {"peft": {"method": "lora"}}, None),
            (
                2,
                {"peft": {"method": "lora"}},
                "`peft.method: lora` a `training.learning_rate` above 0.1 ",
            ),
            (0.2, {"peft": {"method": "ia3"}}, None),
            (2, {"training": {"optim": "sgd"}}, None),
        ],
    )
    def test_a_rate_that_is_far_too_high(
        self, client: httpx.Client, rate: float, more: dict[str, Any], highest: str | None
    ) -> None:
        body = spec(**more)
        body["training"] = {**body.get("training", {}), "learning_rate": rate}
        answer = client.post("/v1/jobs/validate", json=body).json()
        assert answer["valid"], answer
        (found,) = answer["warnings"] or [None]
        assert (found is None) is (highest is None), answer
        if highest is not None:
            assert (found["path"], found["code"]) == ("training.learning_rate", "rate_too_high")
            assert highest in found["message"]
            assert found["message"].endswith("rarely learns anything, and it is 2")

    def test_each_method_has_its_highest_rate(self) -> None:
        methods = models_in(JobSpec.model_fields["peft"].annotation)
        names = {method.model_fields["method"].default for method in methods}
        assert names == set(_HIGHEST_RATE_OF_METHOD)

    def test_a_replay_repeats_the_answer_and_not_the_event(self, client: httpx.Client) -> None:
        headers = {"Idempotency-Key": "k-1"}
        first, again = (
            client.post("/v1/jobs", json=_SHORT, headers=headers).json() for _ in range(2)
        )
        assert (again["id"], again["warnings"]) == (first["id"], [_NO_LOSS])
        assert len(notices(client, first["id"])) == 1

    def test_a_job_that_does_not_train_has_no_steps(self, client: httpx.Client) -> None:
        dataset = {"source": "hub", "name": "org/data", "validation": "test"}
        body = {**_SHORT, "mode": "evaluate", "dataset": dataset}
        assert client.post("/v1/jobs", json=body).json()["warnings"] == []


class TestMissingGpus:
    @pytest.mark.parametrize(
        ("devices", "wanted", "message"),
        [
            ([_GPU], 1, None),
            ([_GPU, _GPU], 2, None),
            (
                [_GPU],
                4,
                "no live worker has 4 GPUs (the largest has one GPU): the job waits until one "
                "with 4 GPUs starts",
            ),
            (
                [_MIG, _MIG],
                2,
                "no live worker has 2 GPUs (the largest has one GPU): the job waits until one "
                "with 2 GPUs starts",
            ),
            (
                [_GPU | {"problem": "it does not answer"}],
                1,
                "no live worker has a GPU: the job waits until one with 1 GPU starts",
            ),
        ],
    )
    def test_more_than_the_largest_worker_has(
        self, server: Server, devices: list[dict[str, Any]], wanted: int, message: str | None
    ) -> None:
        register(server, *devices)
        register(server, {"type": "cpu", "name": "a CPU"}, name="two@host")
        answer = server.client.post("/v1/jobs", json=spec(resources={"gpus": wanted}))
        found = [(item["path"], item["message"]) for item in answer.json()["warnings"]]
        assert answer.status_code == 201
        assert found == ([("resources.gpus", message)] if message else [])

    def test_without_a_worker(self, client: httpx.Client) -> None:
        answer = client.post("/v1/jobs/validate", json=spec(resources={"gpus": 1})).json()
        assert [item["message"] for item in answer["warnings"]] == [
            "no worker is running: the job waits until one with 1 GPU starts"
        ]
