"""What a user sees when a job is cancelled, a worker is killed or the data is bad."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from chaos.faults.pace import Pace
from tests.e2e.jobs import ended_run, job_body, losses, trained_to, training
from tests.e2e.stack import Stack
from tests.support.processes import is_alive
from tests.support.servers.services import wait_until

pytestmark = [pytest.mark.timeout(400), pytest.mark.long]


# Each of them takes a minute: one pair of database and broker is enough.
_POSTGRES = pytest.mark.parametrize("stack", ["postgres-redis"], indirect=True)
_SQLITE = pytest.mark.parametrize("stack", ["sqlite-valkey"], indirect=True)


@_SQLITE
@pytest.mark.heavy  # the attack `kills` is made in each run, with the same promise
class TestSigkill:
    def test_the_job_ends_with_the_weights_of_an_undisturbed_run(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path]
    ) -> None:
        body = job_body(stack, tiny_model, squad, training=training())
        undisturbed = stack.finish(stack.submit(body))

        job_id = stack.submit(body)
        stack.wait_for(job_id, trained_to(20))
        family = stack.parts["worker"].family()
        assert _trains(stack)
        stack.parts["worker"].kill()  # only the outermost: the rest must die with it
        wait_until(lambda: not any(is_alive(process) for process in family), 10, "their end")
        stack.start_worker()
        finished = stack.finish(job_id)

        assert finished["result"]["weights_sha256"] == undisturbed["result"]["weights_sha256"]
        assert _attempts_at_training(stack, job_id) == 2
        assert losses(stack, job_id) == losses(stack, undisturbed["id"])


@_POSTGRES
@pytest.mark.heavy  # as the attack `interruptions`; pausing and resuming below is tried in each run
class TestWishes:
    def test_paused_resumed_cancelled_and_retried_it_is_the_same_run(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path]
    ) -> None:
        def ask(action: str, of: str) -> dict[str, Any]:
            answer = stack.http.post(f"/v1/jobs/{of}/{action}", json={})
            assert answer.is_success, answer.text
            page: dict[str, Any] = answer.json()
            return page

        job_id = stack.submit(job_body(stack, tiny_model, squad, training=training(max_steps=100)))
        worker = stack.parts["worker"]
        with Pace(worker, stack.home / "jobs" / job_id, limit=20):
            stack.wait_for(job_id, trained_to(15))
            stops = worker.stops()
            assert ask("pause", job_id)["state"] == "pausing"
            wait_until(lambda: worker.stops() > stops, 30, "the stop")
        paused = stack.finish(job_id, "paused", seconds=15)
        assert not _trains(stack)
        ask("resume", job_id)
        seen = paused["progress"]["step"] + 10
        with Pace(worker, stack.home / "jobs" / job_id, limit=seen + 5):
            stack.wait_for(job_id, trained_to(seen))
            stops = worker.stops()
            ask("cancel", job_id)
            wait_until(lambda: worker.stops() > stops, 30, "the stop")
        stack.finish(job_id, "cancelled", seconds=15)
        retried = ask("retry", job_id)
        assert (retried["state"], retried["stage"], retried["failure"]) == ("queued", "train", None)
        finished = stack.finish(job_id)

        assert _attempts_at_training(stack, job_id) == 3
        events = stack.pages(f"/v1/jobs/{job_id}/events")
        first, second = (e["data"]["step"] for e in events if e["type"] == "resumed")
        assert (first >= paused["progress"]["step"], second >= first) == (True, True)
        clone = ask("clone", job_id)
        assert (clone["cloned_from"], clone["spec"]) == (job_id, finished["spec"])
        ask("cancel", clone["id"])

        assert stack.http.delete(f"/v1/jobs/{job_id}").status_code == 200
        assert stack.http.get(f"/v1/jobs/{job_id}").status_code == 404
        assert not (stack.home / "jobs" / job_id).exists()
        client, run = ended_run(finished)
        assert run.info.status == "FINISHED"
        steps = [point.step for point in client.get_metric_history(run.info.run_id, "loss")]
        assert sorted(steps) == list(range(1, 101))


def _trains(stack: Stack) -> bool:
    """Whether a process runs the stage; the fork server only names it, as a module to import."""
    family = stack.parts["worker"].family()
    return any(process.cmdline()[3:4] == ["worker.stages.train.stage"] for process in family)


def _attempts_at_training(stack: Stack, job_id: str) -> int:
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    started = [event["data"] for event in events if event["type"] == "stage_started"]
    return sum(data["stage"] == "train" for data in started)


@_POSTGRES
class TestSoftStop:
    def test_pause_resume_and_a_worker_that_leaves(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path]
    ) -> None:
        """Each stop writes a checkpoint of the step in hand, and the next attempt begins there."""
        body = job_body(stack, tiny_model, squad, training=training(max_steps=400, save_steps=500))
        job_id = stack.submit(body)
        stack.wait_for(job_id, trained_to(10))
        assert stack.http.post(f"/v1/jobs/{job_id}/pause").json()["state"] == "pausing"
        stack.wait_for(job_id, lambda page: page["state"] == "paused", seconds=60)
        paused_at = self._newest_checkpoint(stack, job_id)
        # A worker may have it before it is read for the answer.
        assert stack.http.post(f"/v1/jobs/{job_id}/resume").json()["state"] in ("queued", "running")
        stack.wait_for(job_id, trained_to(paused_at + 5))
        stack.parts["worker"].stop(seconds=60)
        page = stack.job(job_id)
        assert page["state"] == "queued"
        assert self._newest_checkpoint(stack, job_id) == page["progress"]["step"] > paused_at
        stack.start_worker()
        stack.wait_for(job_id, trained_to(page["progress"]["step"] + 1))
        events = stack.pages(f"/v1/jobs/{job_id}/events")
        resumed = [event["data"]["step"] for event in events if event["type"] == "resumed"]
        assert resumed == [paused_at, page["progress"]["step"]]
        assert not {"lease_expired", "attempt_failed"} & {event["type"] for event in events}
        stack.http.post(f"/v1/jobs/{job_id}/cancel")
        stack.finish(job_id, "cancelled", seconds=30)

    @staticmethod
    def _newest_checkpoint(stack: Stack, job_id: str) -> int:
        events = stack.pages(f"/v1/jobs/{job_id}/events")
        return int([e["data"]["step"] for e in events if e["type"] == "checkpoint"][-1])


class TestCancel:
    def test_a_running_job_stops_within_15_seconds(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path]
    ) -> None:
        body = job_body(stack, tiny_model, squad, training=training(max_steps=5000))
        job_id = stack.submit(body)
        stack.wait_for(job_id, trained_to(3))
        started = time.monotonic()
        assert stack.http.post(f"/v1/jobs/{job_id}/cancel").status_code in (200, 202)
        page = stack.finish(job_id, "cancelled", seconds=15)
        assert time.monotonic() - started < 15
        assert page["failure"]["code"] == "cancelled"
        assert stack.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 409


@_POSTGRES
class TestBadData:
    def test_the_bad_row_is_named(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path], tmp_path: Path
    ) -> None:
        rows = [
            {"question": "q?", "context": "a b", "answers": {"text": ["a"], "answer_start": [0]}},
            {"question": "q?", "context": 7, "answers": {"text": ["a"], "answer_start": [0]}},
        ]
        bad = tmp_path / "bad.jsonl"
        bad.write_text("".join(json.dumps(row) + "\n" for row in rows))
        body = job_body(stack, tiny_model, squad, training=training(max_steps=1))
        body["dataset"] = {"source": "upload", "train": stack.upload(bad)}
        page = stack.finish(stack.submit(body), "failed", seconds=60)
        assert page["failure"]["code"] == "unreadable_row"
        assert "2" in page["failure"]["message"]
        assert page["failure"]["action"]
        assert "Traceback" not in json.dumps(page)
