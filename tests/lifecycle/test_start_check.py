"""The quick checks at a worker's start, whose report is written to the worker's row."""

import fcntl
import json
import os
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import select
from structlog.testing import capture_logs

from service.store.database import Database
from service.store.scheduling.registration import WorkerInfo
from service.store.tables.workers import WorkerRow
from tests.support.servers.services import wait_until
from worker.doctor import __main__ as command
from worker.doctor.check import IDLE_GPU, Check, Context, TorchView
from worker.doctor.runner import lacks
from worker.lifecycle import start_check
from worker.lifecycle.registration import Registration

INFO = WorkerInfo("one@host", "host", 7, ["gpu"], [], "1")
LINE = {"name": "driver", "status": "failed", "summary": "too old", "remedy": "Install 580."}
REPORT = {
    "status": "failed",
    "made_at": "2026-11-22T12:00:00+00:00",
    "checks": [{**LINE, "reason": "x" * 600, "title": "NVIDIA driver", "seconds": 1, "data": {}}],
    "machine": {},
}
SHORT = {
    "status": "failed",
    "checked_at": "2026-11-22T12:00:00+00:00",
    "findings": [{**LINE, "reason": "x" * 500}],
}


def reported_by(folder: Path, monkeypatch: pytest.MonkeyPatch, code: str) -> dict[str, Any]:
    (folder / "stub_doctor.py").write_text(code)
    monkeypatch.setenv("PYTHONPATH", f"{Path(__file__).resolve().parents[2]}:{folder}")
    reports: list[dict[str, Any]] = []
    start_check.start(reports.append, ("stub_doctor",)).join(60)
    (one,) = reports
    return one


@pytest.mark.usefixtures("processes")
class TestStartCheck:
    def test_a_report_is_shortened_and_its_faults_are_logged(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        with capture_logs() as logs:
            assert reported_by(tmp_path, monkeypatch, f"print({json.dumps(REPORT)!r})") == SHORT
        assert [(entry["name"], entry["summary"]) for entry in logs] == [("driver", "too old")]

    @pytest.mark.parametrize("code", ["raise SystemExit(1)", "print('[]')", "print('{}')"])
    def test_a_failed_doctor_is_reported_as_not_run(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: str
    ) -> None:
        found = reported_by(tmp_path, monkeypatch, code)
        assert (found["status"], found["findings"]) == ("not_run", [])


class TestRegistration:
    def test_the_report_is_written_with_a_beat_and_kept_in_a_new_row(
        self, database: Database, database_url: str
    ) -> None:
        def found() -> list[Any]:
            with database.read() as session:
                return [row.doctor for row in session.scalars(select(WorkerRow))]

        registration = Registration(database_url, INFO, 0.05)
        registration.start()
        try:
            wait_until(lambda: found() == [None], 20, "the row")
            registration.set_doctor_report(SHORT)
            wait_until(lambda: found() == [SHORT], 20, "the findings")
            with database.write() as session:
                session.delete(session.get_one(WorkerRow, INFO.id))
            wait_until(lambda: found() == [SHORT], 20, "the new row")
        finally:
            registration.stop()


class TestInBackground:
    def test_nothing_computes_on_a_gpu_that_a_job_may_have(self) -> None:
        check = Check("products", "", "", 1, quick=True, needs=(IDLE_GPU,))
        gpu = Context(scratch=Path(), in_background=True, torch=TorchView(available=True))
        found = lacks(check, gpu)
        assert found is not None
        assert found.reason.startswith("it computes on the GPU, which a job may be using")
        assert lacks(check, gpu.model_copy(update={"in_background": False})) is None
        assert lacks(check, Context(scratch=Path(), in_background=True)) is None

    def test_doctors_of_one_machine_take_turns(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(os, "nice", lambda _: 0)
        command._await_turn(tmp_path)
        lock_file = tmp_path / "doctor-at-start.lock"
        with lock_file.open() as lock, pytest.raises(BlockingIOError):
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
