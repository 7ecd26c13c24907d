"""What cannot succeed is refused before a job is made."""

from dataclasses import replace
from typing import Any, ClassVar

import httpx
import pytest

from service.store.scheduling import registration
from tests.api.conftest import Server
from tests.api.factories import SPEC, spec
from tests.support.store.job_rows import WORKER, finished_job
from tests.support.store.searches import TEMPLATE, search_spec

_HUB = spec(hub={"model_id": "org/result"})
_NO_TOKEN = {
    "path": "hub",
    "code": "no_hub_token",
    "message": "No Hub token is set: store one with `finetune secrets set` and name it in "
    "`secrets.hub_token`, or set FINETUNE_HUB_TOKEN and restart the workers, or leave out `hub` "
    "and push later with `finetune publish`",
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
                registration.register(session, worker)
        assert server.client.post("/v1/jobs", json=SPEC).status_code == 201
        answer = server.client.post("/v1/jobs", json=_HUB)
        assert answer.status_code == (422 if is_refused else 201)
        if is_refused:
            assert answer.json()["errors"] == [_NO_TOKEN]

    def test_is_needed_to_push_later_or_from_a_clone(self, server: Server) -> None:
        job_id = finished_job(server.database)
        with server.database.write() as session:
            registration.register(session, replace(WORKER, has_hub_token=False))
        hub = {"model_id": "org/result"}
        answer = server.client.post(f"/v1/jobs/{job_id}/publish", json=hub)
        assert answer.status_code == 422
        message = "No Hub token is set: set FINETUNE_HUB_TOKEN and restart the workers"
        assert answer.json()["errors"] == [_NO_TOKEN | {"message": message}]
        assert server.client.get(f"/v1/jobs/{job_id}").json()["state"] == "succeeded"
        clone = server.client.post(f"/v1/jobs/{job_id}/clone", json={"hub": hub})
        assert clone.json()["errors"] == [_NO_TOKEN]


class TestWhatNoWorkerHas:
    """Known from what the live workers have registered."""

    GPU: ClassVar = [{"type": "cuda", "index": 0, "uuid": "GPU-1", "name": "a GPU", "mig": False}]

    def register(self, server: Server, *workers: dict[str, Any]) -> None:
        with server.database.write() as session:
            for number, values in enumerate(workers):
                registration.register(session, replace(WORKER, id=f"{number}@host", **values))

    def refused(self, server: Server, **changes: Any) -> list[tuple[str, str]]:
        """(path, message) of each fault of a POST."""
        answer = server.client.post("/v1/jobs", json=spec(**changes))
        if answer.is_success:
            return []
        faults = answer.json()["errors"]
        assert {fault["code"] for fault in faults} == {"no_able_worker"}
        return [(fault["path"], fault["message"]) for fault in faults]

    HALF: ClassVar = spec(training={"precision": "fp16"})
    NO_GPU = (
        "`training.precision: fp16` needs a GPU, and no live worker that could run the job has "
        "one: start a worker on a machine with a GPU, or use `bf16`"
    )

    def test_float16_without_a_gpu_is_refused_wherever_a_spec_is_checked(
        self, server: Server
    ) -> None:
        post = server.client.post
        made = post("/v1/jobs", json=self.HALF)
        assert made.status_code == 201  # nothing is known
        self.register(server, {})
        fault = {
            "path": "training.precision",
            "code": "no_able_worker",
            "message": f"{self.NO_GPU}. With `force` the spec is accepted all the same",
        }
        unset = {"given": None, "allowed": None, "suggestion": None}
        assert post("/v1/jobs/validate", json=self.HALF).json()["errors"] == [fault | unset]
        search = search_spec(job=TEMPLATE | {"training": {"precision": "fp16"}})
        for path, body in [
            ("/v1/jobs", self.HALF),
            ("/v1/jobs/preview?wait=0", self.HALF),
            (f"/v1/jobs/{made.json()['id']}/clone", {}),
        ]:
            answer = post(path, json=body)
            assert (answer.status_code, answer.json()["errors"]) == (422, [fault])
        for path in ("/v1/searches", "/v1/searches/validate"):
            [found] = post(path, json=search).json()["errors"]
            assert found | unset == fault | unset | {"path": "job.training.precision"}

    def test_it_is_a_warning_with_force(self, server: Server) -> None:
        post = server.client.post
        job_id = post("/v1/jobs", json=self.HALF).json()["id"]
        self.register(server, {})
        warning = {
            "path": "training.precision",
            "code": "no_able_worker",
            "message": f"{self.NO_GPU}. Until then the training fails",
        }
        for path, body in [
            ("/v1/jobs", self.HALF),
            ("/v1/jobs/validate", self.HALF),
            (f"/v1/jobs/{job_id}/clone", {}),
        ]:
            answer = post(path, params={"force": True}, json=body)
            assert answer.is_success
            assert answer.json()["warnings"] == [warning]
        search = search_spec(job=TEMPLATE | {"training": {"precision": "fp16"}})
        preview = post("/v1/jobs/preview?wait=0&force=true", json=self.HALF)
        assert preview.status_code == 202
        for path in ("/v1/searches", "/v1/searches/validate"):
            answer = post(path, params={"force": True}, json=search)
            assert answer.is_success
            paths = [each["path"] for each in answer.json()["warnings"]]
            assert "job.training.precision" in paths

    @pytest.mark.parametrize(
        ("packages", "is_refused"),
        [
            ([None], False),
            ([[]], True),
            ([["bitsandbytes"], []], True),
            ([["bitsandbytes"], ["torchao"]], False),
            ([["bitsandbytes"], None], False),
        ],
    )
    def test_a_package(
        self, server: Server, packages: list[list[str] | None], *, is_refused: bool
    ) -> None:
        """A worker of 0.1.0 does not report its packages."""
        self.register(server, *({"packages": each} for each in packages))
        message = (
            "`training.optim: adamw_torch_8bit` needs the package torchao, and no live worker that "
            "could run the job has it: install it (`pip install 'finetune-service[torchao]'`) and "
            "restart the worker, or use `adamw_torch`. With `force` the spec is accepted all the "
            "same"
        )
        found = self.refused(server, training={"optim": "adamw_torch_8bit"})
        assert found == ([("training.optim", message)] if is_refused else [])

    @pytest.mark.parametrize(
        ("changes", "path", "words"),
        [
            ({"training": {"optim": "lion_8bit"}}, "training.optim", "[worker]"),
            (
                {"peft": {"method": "lora", "quantization": {"bits": 8}}},
                "peft.quantization",
                "or leave it out",
            ),
            (
                {"resources": {"gpus": 0, "num_processes": 2, "strategy": "deepspeed"}},
                "resources.strategy",
                "[deepspeed]'`) and restart the worker, or use `fsdp`",
            ),
        ],
    )
    def test_each_package(
        self, server: Server, changes: dict[str, Any], path: str, words: str
    ) -> None:
        self.register(server, {"packages": []})
        [(found, message)] = self.refused(server, **changes)
        assert found == path
        assert words in message

    def test_one_worker_must_have_all(self, server: Server) -> None:
        paged = {"training": {"optim": "paged_adamw_8bit"}}
        whole = {"packages": ["bitsandbytes"]}
        self.register(server, whole, {"packages": [], "devices": self.GPU})
        [(path, message)] = self.refused(server, **paged)
        assert path == "training.optim"
        assert "needs the package bitsandbytes" in message
        self.register(server, whole, whole | {"devices": self.GPU})
        assert self.refused(server, **paged) == []

    def test_only_workers_that_could_claim_the_training_are_asked(self, server: Server) -> None:
        """Otherwise the job waits for one, of which nothing is known."""
        self.register(server, {"packages": [], "queues": ["cpu"]})
        assert self.refused(server, training={"precision": "fp16"}) == []
        self.register(server, {"packages": []})
        assert self.refused(server, training={"precision": "fp16"}, resources={"gpus": 1}) == []

    def test_a_fault_elsewhere_does_not_hide_it(self, server: Server) -> None:
        self.register(server, {"packages": []})
        training = {"optim": "lion_8bit"}
        body = spec(training=training, peft={"method": "lora", "r": -1})
        faults = server.client.post("/v1/jobs/validate", json=body).json()["errors"]
        assert [fault["path"] for fault in faults] == ["peft.r", "training.optim"]


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
