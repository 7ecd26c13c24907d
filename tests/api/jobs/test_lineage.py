"""Jobs that begin with what another job has made, over HTTP."""

from typing import Any

import pytest

from tests.api.conftest import Server
from tests.api.factories import START, add_job, lines, spec
from tests.support.store.job_rows import add_checkpoint

MADE = {"train": {"output_dir": "attempts/2/output", "metrics": {}, "weights_sha256": "a" * 64}}


def source(server: Server, **columns: Any) -> str:
    values = {"state": "succeeded", "ended_at": START, "results": MADE, "epoch": 2, **columns}
    return add_job(server.database, **values)


def refused(server: Server, **model: Any) -> list[dict[str, Any]]:
    """The faults, which POST /v1/jobs and /v1/jobs/validate tell alike."""
    body = spec(model=model)
    answer = server.client.post("/v1/jobs", json=body)
    assert answer.status_code == 422
    errors: list[dict[str, Any]] = answer.json()["errors"]
    validated = server.client.post("/v1/jobs/validate", json=body).json()["errors"]
    reported = [{name: fault[name] for name in ("path", "code", "message")} for fault in validated]
    assert reported == [{name: fault[name] for name in reported[0]} for fault in errors]
    return errors


class TestModelOfJob:
    def test_both_pages_and_histories_tell_it(self, server: Server) -> None:
        base = source(server)
        answer = server.client.post("/v1/jobs", json=spec(model={"job": base}))
        assert answer.status_code == 201
        page = answer.json()
        assert page["base_job"] == base
        assert page["spec"]["model"]["job"] == base
        theirs = server.client.get(f"/v1/jobs/{base}").json()
        assert (theirs["base_job"], theirs["derived_jobs"]) == (None, [page["id"]])
        events = server.client.get(f"/v1/jobs/{base}/events").json()["data"]
        assert (events[-1]["type"], events[-1]["data"]) == ("derived", {"job": page["id"]})
        clone = server.client.post(f"/v1/jobs/{page['id']}/clone", json={}).json()
        assert clone["base_job"] == base
        theirs = server.client.get(f"/v1/jobs/{base}").json()
        assert theirs["derived_jobs"] == [page["id"], clone["id"]]

    def test_what_is_not_there(self, server: Server) -> None:
        [fault] = refused(server, job="job-00aa")
        assert (fault["path"], fault["code"]) == ("model.job", "unknown_job")
        [fault] = refused(server, job=source(server), checkpoint=7)
        assert (fault["path"], fault["code"]) == ("model.checkpoint", "unknown_checkpoint")
        [fault] = refused(server, job=source(server, workspace_pruned_at=START))
        assert (fault["path"], fault["code"]) == ("model.job", "model_gone")
        [fault] = refused(server, job=source(server, state="running", results={}))
        assert (fault["path"], fault["code"]) == ("model.job", "job_not_ended")

    @pytest.mark.parametrize(
        ("model", "words"),
        [
            ({"job": "job-1", "name_or_path": "a/b"}, "`name_or_path` is not allowed with `job`"),
            ({"job": "job-1", "revision": "main"}, "`revision` is not allowed with `job`"),
            ({"name_or_path": "a/b", "checkpoint": "best"}, "`job` is missing"),
            ({"job": "job-1", "checkpoint": "newest"}, "must be `best`, `last` or"),
            ({"job": "../etc"}, "job-"),
        ],
    )
    def test_fields_that_do_not_fit(self, model: dict[str, Any], words: str) -> None:
        assert words in str(lines(spec(model=model)))


class TestResumeFrom:
    def resumable(self, server: Server, **columns: Any) -> str:
        job_id = source(server, **columns)
        add_checkpoint(server.database, job_id, 10)
        return job_id

    def body(self, job_id: str, **changes: Any) -> dict[str, Any]:
        training = {"resume_from": {"job": job_id}, **changes.pop("training", {})}
        return spec(training=training, **changes)

    def faults(self, server: Server, body: dict[str, Any]) -> list[tuple[str, str]]:
        answer = server.client.post("/v1/jobs", json=body)
        assert answer.status_code == 422
        return [(fault["path"], fault["code"]) for fault in answer.json()["errors"]]

    def test_both_pages_and_histories_tell_it(self, server: Server) -> None:
        base = self.resumable(server)
        body = self.body(base, training={"num_train_epochs": 9, "save_steps": 7, "max_steps": 90})
        answer = server.client.post("/v1/jobs", json=body)
        assert answer.status_code == 201
        page = answer.json()
        assert page["base_job"] == base
        assert page["spec"]["training"]["resume_from"] == {"job": base, "checkpoint": "last"}
        theirs = server.client.get(f"/v1/jobs/{base}").json()
        assert theirs["derived_jobs"] == [page["id"]]
        first = server.client.get(f"/v1/jobs/{page['id']}/events").json()["data"][0]
        assert first["data"]["base_job"] == base
        answer = server.client.delete(f"/v1/jobs/{base}")
        assert (answer.status_code, answer.json()["jobs"]) == (409, [page["id"]])

    def test_a_clone_with_more_epochs_continues_what_it_is_a_clone_of(self, server: Server) -> None:
        base = self.resumable(server)
        change = {"training": {"resume_from": {"job": base, "checkpoint": 10}}}
        clone = server.client.post(f"/v1/jobs/{base}/clone", json=change)
        assert clone.status_code == 201
        assert clone.json()["base_job"] == base

    def test_what_is_not_there(self, server: Server) -> None:
        base = self.resumable(server)
        place = "training.resume_from"
        unknown = self.faults(server, self.body("job-00aa"))
        assert unknown == [(f"{place}.job", "unknown_job")]
        chosen = {"resume_from": {"job": base, "checkpoint": 7}}
        assert self.faults(server, self.body(base, training=chosen)) == [
            (f"{place}.checkpoint", "unknown_checkpoint")
        ]
        running = self.resumable(server, state="running", results={})
        assert self.faults(server, self.body(running)) == [(f"{place}.job", "job_not_ended")]
        pruned = self.resumable(server, workspace_pruned_at=START)
        assert self.faults(server, self.body(pruned)) == [(f"{place}.job", "model_gone")]

    def test_what_does_not_match(self, server: Server) -> None:
        base = self.resumable(server)
        cases: tuple[tuple[dict[str, Any], str, str], ...] = (
            ({"task": "causal-lm"}, "task", "question-answering"),
            ({"model": {"name_or_path": "org/other"}}, "model.name_or_path", "org/model"),
            ({"training": {"optim": "sgd"}}, "training.optim", "adamw_torch_fused"),
            ({"training": {"learning_rate": 1}}, "training.learning_rate", "5e-05"),
            ({"training": {"seed": 7, "data_seed": 42}}, "training.seed", "42"),
            ({"training": {"data_seed": 7}}, "training.data_seed", "42"),
            (
                {"training": {"per_device_train_batch_size": 4}},
                "training.per_device_train_batch_size",
                "8",
            ),
            ({"peft": {"method": "lora"}}, "peft", "null"),
            ({"resources": {"gpus": 0, "num_processes": 2}}, "resources.num_processes", "1"),
        )
        for changes, path, theirs in cases:
            body = self.body(base, **changes)
            faults = server.client.post("/v1/jobs", json=body).json()["errors"]
            [fault] = [fault for fault in faults if fault["path"] == path]
            assert fault["code"] == "resume_mismatch", path
            assert theirs in fault["message"]
            assert "`model.job`" in fault["message"]
            validated = server.client.post("/v1/jobs/validate", json=body).json()["errors"]
            assert [each["path"] for each in validated] == [each["path"] for each in faults]

    def test_an_adapter_may_be_left_unmerged(self, server: Server) -> None:
        merged = {"method": "lora", "lora_bias": True, "merge": True}
        base = self.resumable(server, spec=spec(peft=merged))
        apart = self.body(base, peft={**merged, "merge": False})
        assert server.client.post("/v1/jobs", json=apart).status_code == 201
        other = self.body(base, peft={**merged, "r": 4, "merge": False})
        assert self.faults(server, other) == [("peft", "resume_mismatch")]

    def test_evaluations_are_compared_by_one_metric(self, server: Server) -> None:
        judged = {"metric_for_best_model": "eval_f1"}
        base = self.resumable(server, spec=spec(training=judged))
        faults = self.faults(server, self.body(base))
        assert faults == [("training.metric_for_best_model", "resume_mismatch")]
        same = self.body(base, training={"metric_for_best_model": "f1"})
        assert server.client.post("/v1/jobs", json=same).status_code == 201

    def test_only_trainings_continue(self, server: Server) -> None:
        base = self.resumable(server)
        data = {"source": "hub", "name": "org/data", "validation": "validation"}
        answer = server.client.post("/v1/jobs", json=self.body(base, mode="evaluate", dataset=data))
        assert answer.status_code == 422
        assert "`evaluate` does not train" in answer.text
