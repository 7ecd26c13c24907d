"""What a user sees when a job is cancelled, a worker is killed or the data is bad."""

import json
import time
from pathlib import Path
from typing import Any

import pytest

from tests.e2e.stack import Stack, is_alive
from tests.e2e.test_main_job import job_body
from tests.services import wait_until

pytestmark = pytest.mark.timeout(400)


def _training(**changes: Any) -> dict[str, Any]:
    return {
        "max_steps": 150,
        "learning_rate": 1e-3,
        "logging_steps": 1,
        "save_steps": 5,
        "save_total_limit": 2,
        "use_cpu": True,
    } | changes


def _trained_to(step: int) -> Any:
    return lambda page: page["stage"] == "train" and (page["progress"] or {}).get("step", 0) >= step


class TestSigkill:
    def test_the_job_ends_with_the_weights_of_an_undisturbed_run(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path]
    ) -> None:
        body = job_body(stack, tiny_model, squad, training=_training())
        undisturbed = stack.finish(stack.submit(body))

        job_id = stack.submit(body)
        stack.wait_for(job_id, _trained_to(20))
        family = stack.parts["worker"].family()
        assert any("worker.stages.train" in process.cmdline() for process in family)
        stack.parts["worker"].kill()  # only the outermost: the rest must die with it
        wait_until(lambda: not any(is_alive(process) for process in family), 10, "their end")
        stack.start_worker()
        finished = stack.finish(job_id)

        assert finished["result"]["weights_sha256"] == undisturbed["result"]["weights_sha256"]
        attempts = [
            event
            for event in stack.pages(f"/v1/jobs/{job_id}/events")
            if event["type"] == "stage_started" and event["data"]["stage"] == "train"
        ]
        assert len(attempts) == 2
        assert self._losses(stack, job_id) == self._losses(stack, undisturbed["id"])

    @staticmethod
    def _losses(stack: Stack, job_id: str) -> list[tuple[int, float]]:
        rows = stack.pages(f"/v1/jobs/{job_id}/metrics")
        return [(row["step"], row["values"]["loss"]) for row in rows if "loss" in row["values"]]


class TestCancel:
    def test_a_running_job_stops_within_15_seconds(
        self, stack: Stack, tiny_model: Path, squad: dict[str, Path]
    ) -> None:
        body = job_body(stack, tiny_model, squad, training=_training(max_steps=5000))
        job_id = stack.submit(body)
        stack.wait_for(job_id, _trained_to(3))
        started = time.monotonic()
        assert stack.http.post(f"/v1/jobs/{job_id}/cancel").status_code in (200, 202)
        page = stack.finish(job_id, "cancelled", seconds=15)
        assert time.monotonic() - started < 15
        assert page["failure"]["code"] == "cancelled"
        assert stack.http.post(f"/v1/jobs/{job_id}/cancel").status_code == 409


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
        body = job_body(stack, tiny_model, squad, training=_training(max_steps=1))
        body["dataset"] = {"source": "upload", "train": stack.upload(bad)}
        page = stack.finish(stack.submit(body), "failed", seconds=60)
        assert page["failure"]["code"] == "unreadable_row"
        assert "2" in page["failure"]["message"]
        assert page["failure"]["action"]
        assert "Traceback" not in json.dumps(page)
