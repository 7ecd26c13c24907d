"""Pause, resume, retry, clone and delete over HTTP: what is answered is what is stored."""

from typing import Any

import httpx
import pytest

from service.contract.spec.spec import SPEC_VERSION
from service.contract.states import ACTIONS, JobState
from service.store.tables.files import FileRow
from service.store.tables.jobs import JobRow
from tests.api.conftest import Server, code, uploaded
from tests.api.factories import SPEC, START, add_job, spec
from tests.api.jobs.stage_results import artifact, prepared, trained

FAILURE = {"code": "out_of_memory", "message": "too big", "action": "Less.", "details": {}}


def failed_job(server: Server, stage: str, **columns: Any) -> str:
    job_id = add_job(
        server.database, state="failed", stage=stage, ended_at=START, failure=FAILURE, **columns
    )
    results = {"prepare": prepared(server, job_id), "train": trained(server, job_id)}
    done = {"prepare": 0, "train": 1, "publish": 2}[stage]
    with server.database.write() as session:
        session.get_one(JobRow, job_id).results = dict(list(results.items())[:done])
    return job_id


def events(server: Server, job_id: str) -> list[dict[str, Any]]:
    page = server.client.get(f"/v1/jobs/{job_id}/events").json()
    data: list[dict[str, Any]] = page["data"]
    return data


class TestPauseAndResume:
    def test_a_waiting_job(self, client: httpx.Client) -> None:
        job_id = client.post("/v1/jobs", json=SPEC).json()["id"]
        for _ in range(2):
            paused = client.post(f"/v1/jobs/{job_id}/pause")
            assert (paused.status_code, paused.json()["state"]) == (200, "paused")
        assert paused.json()["actions"] == ["resume", "cancel", "clone"]
        assert paused.json()["queue_position"] is None
        for _ in range(2):
            resumed = client.post(f"/v1/jobs/{job_id}/resume").json()
            assert (resumed["state"], resumed["queue_position"]) == ("queued", 1)

    def test_refused(self, server: Server) -> None:
        ended = dict.fromkeys(("cancelled", "failed", "succeeded"), "job_ended")
        for state, expected in {"cancelling": "wrong_state", **ended}.items():
            path = f"/v1/jobs/{add_job(server.database, state=state)}"
            for action in ("pause", "resume"):
                answer = server.client.post(f"{path}/{action}")
                assert (*code(answer), answer.json()["state"]) == (409, expected, state)
                assert server.client.get(path).json()["state"] == state

    def test_a_page_says_what_can_be_done_and_it_can(self, server: Server) -> None:
        def made(state: JobState) -> str:
            return f"/v1/jobs/{add_job(server.database, state=state)}"

        of_a_model = {"promote", "publish"}  # and these have made nothing
        for state in JobState:
            actions = server.client.get(made(state)).json()["actions"]
            assert actions == [each for each in ACTIONS[state] if each not in of_a_model]
            for action in ("pause", "resume", "cancel", "retry"):
                answer = server.client.post(f"{made(state)}/{action}")
                changed = answer.status_code == 200 and answer.json()["state"] != state
                assert changed == (action in actions), (state, action, answer.text)
            deleted = server.client.delete(made(state))
            assert (deleted.status_code == 200) == ("delete" in actions), state
            assert ("cancel it first" in deleted.text) == ("delete" not in actions), state


class TestRetry:
    @pytest.mark.parametrize("stage", ["prepare", "train", "publish"])
    def test_goes_on_at_the_stage_that_failed(self, server: Server, stage: str) -> None:
        job_id = failed_job(server, stage)
        job = server.client.post(f"/v1/jobs/{job_id}/retry").json()
        assert (job["state"], job["stage"], job["failure"]) == ("queued", stage, None)
        assert (job["ended_at"], job["queue_position"]) == (None, 1)
        (event,) = events(server, job_id)
        assert event["type"] == "retried"
        assert (event["data"]["failed_stage"], event["data"]["missing"]) == (stage, [])

    def test_a_job_without_a_model_of_its_own_ends_its_last_stage(self, server: Server) -> None:
        job_id = failed_job(server, "publish")
        with server.database.write() as session:
            row = session.get_one(JobRow, job_id)
            row.results = {**row.results, "train": {**row.results["train"], "output_dir": None}}
        assert server.client.post(f"/v1/jobs/{job_id}/retry").json()["stage"] == "publish"
        (event,) = events(server, job_id)
        assert event["data"]["missing"] == []

    @pytest.mark.parametrize(
        ("stage", "removed", "goes_on_at", "missing"),
        [
            ("publish", ["attempts/2"], "train", ["finished_model"]),
            ("train", ["prepared"], "prepare", ["prepared_data"]),
            ("train", ["attempts/1"], "prepare", ["base_model"]),
            # What only an earlier stage needs is not looked for.
            ("publish", ["prepared", "attempts/1"], "publish", []),
            (
                "publish",
                ["attempts/2", "attempts/1", "prepared"],
                "prepare",
                ["finished_model", "prepared_data", "base_model"],
            ),
        ],
    )
    def test_goes_back_to_the_stage_whose_product_was_removed(
        self, server: Server, stage: str, removed: list[str], goes_on_at: str, missing: list[str]
    ) -> None:
        job_id = failed_job(server, stage)
        for name in removed:
            root = server.settings.cache_dir if name == "prepared" else None
            folder = (root or server.settings.workspace(job_id)) / name
            folder.rename(folder.with_name(f"{folder.name}.moved"))
        job = server.client.post(f"/v1/jobs/{job_id}/retry").json()
        assert (job["state"], job["stage"]) == ("queued", goes_on_at)
        (event,) = events(server, job_id)
        assert event["data"]["missing"] == missing
        assert event["data"]["failed_stage"] == stage

    def test_a_pruned_workspace_counts_as_removed_before_its_files_are(
        self, server: Server
    ) -> None:
        job_id = failed_job(server, "publish", workspace_pruned_at=START)
        job = server.client.post(f"/v1/jobs/{job_id}/retry").json()
        assert (job["stage"], job["workspace_pruned_at"]) == ("prepare", None)
        assert events(server, job_id)[0]["data"]["missing"] == ["finished_model", "base_model"]

    def test_a_job_of_a_newer_version_is_left_alone(self, server: Server) -> None:
        job_id = failed_job(server, "train", spec_version=SPEC_VERSION + 1)
        answer = server.client.post(f"/v1/jobs/{job_id}/retry")
        assert (answer.status_code, answer.json()["code"]) == (409, "wrong_state")
        assert "newer version" in answer.json()["detail"]

    def test_an_upload_that_is_needed_again_and_was_deleted(self, server: Server) -> None:
        file_id = uploaded(server.client)
        body = spec(dataset={"source": "upload", "train": file_id})
        at_train = failed_job(server, "train", spec=body)
        at_prepare = failed_job(server, "prepare", spec=body)
        assert server.client.delete(f"/v1/files/{file_id}").status_code == 200
        answer = server.client.post(f"/v1/jobs/{at_prepare}/retry")
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (409, "data_gone")
        assert problem["missing"] == [file_id]
        assert server.client.get(f"/v1/jobs/{at_prepare}").json()["state"] == "failed"
        assert server.client.post(f"/v1/jobs/{at_train}/retry").json()["state"] == "queued"


class TestClone:
    def clone(
        self, client: httpx.Client, job_id: str, patch: Any, **headers: str
    ) -> httpx.Response:
        return client.post(f"/v1/jobs/{job_id}/clone", json=patch, headers=headers)

    def test_in_any_state_the_original_stays(self, server: Server) -> None:
        for state in JobState:
            original = add_job(server.database, state=state, spec=spec(name="one"))
            answer = self.clone(server.client, original, {})
            clone = answer.json()
            assert answer.status_code == 201, state
            assert answer.headers["location"] == f"/v1/jobs/{clone['id']}"
            assert (clone["state"], clone["cloned_from"]) == ("queued", original)
            kept = server.client.get(f"/v1/jobs/{original}").json()
            assert (kept["state"], kept["cloned_from"]) == (state, None)
            assert clone["spec"] == kept["spec"]
            assert events(server, clone["id"])[0]["data"]["cloned_from"] == original

    def test_with_changes(self, client: httpx.Client) -> None:
        body = spec(
            name="one",
            training={"learning_rate": 0.1, "max_steps": 7},
            metadata={"a": "1", "b": "2"},
        )
        original = client.post("/v1/jobs", json=body).json()
        patch = {
            "name": "two",
            "training": {"learning_rate": 1e-4, "max_steps": None},
            "metadata": {"a": None, "c": "3"},
        }
        clone = self.clone(client, original["id"], patch).json()
        assert clone["name"] == "two"
        training = {**original["spec"]["training"], "learning_rate": 1e-4, "max_steps": -1}
        changed = {"name": "two", "training": training, "metadata": {"b": "2", "c": "3"}}
        assert clone["spec"] == {**original["spec"], **changed}

    def test_every_fault_is_named_at_once(self, client: httpx.Client) -> None:
        original = client.post("/v1/jobs", json=SPEC).json()["id"]
        answer = self.clone(client, original, {"priority": 10, "training": {"learning_rte": 1}})
        problem = answer.json()
        assert (answer.status_code, problem["code"]) == (422, "invalid_spec")
        assert [fault["path"] for fault in problem["errors"]] == [
            "priority",
            "training.learning_rte",
        ]
        assert problem["errors"][1]["suggestion"] == "learning_rate"
        assert self.clone(client, original, [1]).status_code == 422
        assert self.clone(client, "job-00", {}).status_code == 404

    def test_a_patch_as_deep_as_json_goes(self, client: httpx.Client) -> None:
        original = client.post("/v1/jobs", json=SPEC).json()["id"]
        for depth in (400, 900, 990, 5000):
            body = '{"metadata":' * depth + "{}" + "}" * depth
            answer = client.post(
                f"/v1/jobs/{original}/clone",
                content=body,
                headers={"Content-Type": "application/merge-patch+json"},
            )
            assert answer.status_code in (400, 422), depth

    def test_the_same_key_makes_one_clone(self, client: httpx.Client) -> None:
        first = client.post("/v1/jobs", json=SPEC).json()["id"]
        second = client.post("/v1/jobs", json=SPEC).json()["id"]
        key = {"Idempotency-Key": "k"}
        made = self.clone(client, first, {"priority": 1}, **key).json()
        assert self.clone(client, first, {"priority": 1}, **key).json()["id"] == made["id"]
        for job_id, patch in ((first, {"priority": 2}), (second, {"priority": 1})):
            answer = self.clone(client, job_id, patch, **key)
            assert answer.json()["code"] == "idempotency_key_reused"
        assert client.post("/v1/jobs", json={"priority": 1}, headers=key).status_code == 422
        assert len(client.get("/v1/jobs").json()["data"]) == 3


class TestDelete:
    def test_row_history_and_files_go_and_nothing_else(self, server: Server) -> None:
        job_id = failed_job(server, "publish", spec=spec(metadata={"team": "x"}))
        other = failed_job(server, "publish")
        clone = server.client.post(f"/v1/jobs/{job_id}/clone", json={}).json()["id"]
        answer = server.client.delete(f"/v1/jobs/{job_id}")
        assert (answer.status_code, answer.json()) == (200, {"id": job_id, "deleted": True})
        assert not server.settings.workspace(job_id).exists()
        assert server.settings.workspace(other).is_dir()
        for path in ("", "/events", "/metrics", "/logs", "/artifacts/a"):
            assert server.client.get(f"/v1/jobs/{job_id}{path}").status_code == 404
        assert server.client.delete(f"/v1/jobs/{job_id}").status_code == 404
        page = server.client.get(f"/v1/jobs/{clone}").json()
        assert (page["state"], page["cloned_from"]) == ("queued", job_id)

    def test_its_idempotency_key_is_free_again(self, client: httpx.Client) -> None:
        key = {"Idempotency-Key": "k"}
        first = client.post("/v1/jobs", json=SPEC, headers=key).json()["id"]
        client.post(f"/v1/jobs/{first}/cancel")
        assert client.delete(f"/v1/jobs/{first}").status_code == 200
        again = client.post("/v1/jobs", json=SPEC, headers=key).json()
        assert (again["id"] != first, again["state"]) == (True, "queued")

    def test_a_download_that_has_begun_comes_to_its_end(self, server: Server) -> None:
        job_id = failed_job(server, "publish")
        content = b"w" * 8_000_000
        target = artifact(server, job_id, "w.bin", "attempts/2/output/w.bin", content)
        with server.client.stream("GET", f"/v1/jobs/{job_id}/artifacts/w.bin") as answer:
            pieces = answer.iter_bytes(65536)
            got = next(pieces)
            deleting = httpx.delete(f"{server.url}/v1/jobs/{job_id}")
            assert deleting.status_code == 200
            assert not target.exists()
            got += b"".join(pieces)
        assert got == content


class TestIdempotencyKey:
    def test_a_replay_is_answered_though_its_file_was_deleted(self, server: Server) -> None:
        """The first answer was lost; what it made is not made undone by what came after."""
        client = server.client
        body = spec(dataset={"source": "upload", "train": uploaded(client)})
        key = {"Idempotency-Key": "k"}
        first = client.post("/v1/jobs", json=body, headers=key).json()
        client.post(f"/v1/jobs/{first['id']}/cancel")
        assert client.delete(f"/v1/files/{body['dataset']['train']}").status_code == 200
        again = client.post("/v1/jobs", json=body, headers=key)
        assert (again.status_code, again.json()["id"]) == (201, first["id"])
        assert code(client.post("/v1/jobs", json=body)) == (422, "invalid_spec")

    def test_a_number_that_no_field_takes_is_a_fault(self, client: httpx.Client) -> None:
        answer = client.post(
            "/v1/jobs",
            content=b'{"priority": NaN}',
            headers={"Content-Type": "application/json", "Idempotency-Key": "k"},
        )
        assert (answer.status_code, answer.json()["code"]) == (422, "invalid_spec")


class TestUploads:
    def test_making_a_job_notes_the_use_of_its_files(self, server: Server) -> None:
        used, other = uploaded(server.client), uploaded(server.client)
        body = spec(dataset={"source": "upload", "train": [used, used], "validation": used})
        job = server.client.post("/v1/jobs", json=body).json()
        with server.database.read() as session:
            row = session.get_one(FileRow, used)
            assert row.last_used_at is not None
            assert row.last_used_at >= row.created_at
            assert session.get_one(FileRow, other).last_used_at is None
        refused = server.client.delete(f"/v1/files/{used}")
        assert (refused.status_code, refused.json()["job_id"]) == (409, job["id"])
        assert (server.settings.files_dir / used).is_file()


class TestGone:
    def test_artifacts_of_a_pruned_workspace(self, server: Server) -> None:
        job_id = add_job(
            server.database,
            state="succeeded",
            stage="publish",
            ended_at=START,
            workspace_pruned_at=START,
            results={"train": {"output_dir": "attempts/2/output"}},
        )
        artifact(server, job_id, "a", "a", b"x").unlink()
        answer = server.client.get(f"/v1/jobs/{job_id}/artifacts/a")
        assert (answer.status_code, answer.json()["code"]) == (410, "artifact_gone")
        assert "2026-01-01" in answer.json()["detail"]
        assert server.client.get(f"/v1/jobs/{job_id}/artifacts/b").status_code == 404
        page = server.client.get(f"/v1/jobs/{job_id}").json()
        assert page["workspace_pruned_at"] == "2026-01-01T00:00:00Z"
        assert page["result"]["model_path"] is None
