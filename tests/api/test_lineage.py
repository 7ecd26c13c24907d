"""Jobs that begin with another job's model, over HTTP."""

from typing import Any

import pytest

from tests.api.conftest import Server
from tests.api.factories import START, add_job, spec

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
    told = [{name: fault[name] for name in ("path", "code", "message")} for fault in validated]
    assert told == [{name: fault[name] for name in told[0]} for fault in errors]
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
            ({"job": "job-1", "name_or_path": "a/b"}, "`name_or_path` is not for a model that"),
            ({"job": "job-1", "revision": "main"}, "`revision` is not for a model that"),
            ({"name_or_path": "a/b", "checkpoint": "best"}, "`job` is missing"),
            ({"job": "job-1", "checkpoint": "newest"}, "must be `best`, `last` or"),
            ({"job": "../etc"}, "job-"),
        ],
    )
    def test_fields_that_do_not_fit(
        self, server: Server, model: dict[str, Any], words: str
    ) -> None:
        assert words in str(refused(server, **model))

    def test_a_needed_job_is_not_deleted(self, server: Server) -> None:
        base = source(server)
        needs = server.client.post("/v1/jobs", json=spec(model={"job": base})).json()["id"]
        answer = server.client.delete(f"/v1/jobs/{base}")
        assert (answer.status_code, answer.json()["code"]) == (409, "job_in_use")
        assert answer.json()["jobs"] == [needs]
        server.client.post(f"/v1/jobs/{needs}/cancel")
        assert server.client.delete(f"/v1/jobs/{base}").status_code == 200
        assert server.client.get(f"/v1/jobs/{needs}").json()["base_job"] == base
