"""Checks that are forked from a process which has imported what they need."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from worker.doctor.check import Context, Finding
from worker.doctor.run_check import CONTEXT, FINDING
from worker.doctor.warm import Warm

LIMITS = "worker.doctor.checks.limits:shared_memory"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    (tmp_path / CONTEXT).write_text(Context(scratch=tmp_path / "scratch").model_dump_json())
    return tmp_path


@pytest.fixture(scope="module")
def warm() -> Iterator[Warm]:
    with Warm(["json"], {}) as warm:
        yield warm


class TestWarm:
    def test_a_check(self, warm: Warm, folder: Path) -> None:
        arguments = [LIMITS, str(folder)]
        done = warm.run(arguments, seconds=60, folder=folder / "scratch")
        assert done is not None
        assert (done.status, done.output) == (0, "")
        found = Finding.model_validate_json((folder / FINDING).read_bytes())
        assert found.summary.startswith("/dev/shm")

    def test_a_check_that_raises(self, warm: Warm, folder: Path) -> None:
        arguments = ["json:no_such", str(folder)]
        done = warm.run(arguments, seconds=60, folder=folder / "scratch")
        assert done is not None
        assert done.status == 1
        assert "AttributeError" in done.tail

    def test_a_check_at_its_limit_is_killed_and_the_next_one_runs(
        self, warm: Warm, folder: Path
    ) -> None:
        context = folder / CONTEXT
        content = context.read_text()
        context.unlink()
        os.mkfifo(context)  # whoever reads it waits for a writer
        arguments = [LIMITS, str(folder)]
        done = warm.run(arguments, seconds=0.2, folder=folder / "scratch")
        assert done is not None
        assert done.status is None
        context.unlink()
        context.write_text(content)
        done = warm.run(arguments, seconds=60, folder=folder / "scratch")
        assert done is not None
        assert done.status == 0

    def test_it_reports_a_missing_import(self, folder: Path) -> None:
        with Warm(["no_such_module"], {}) as warm:
            for _ in range(2):
                assert warm.run([], seconds=60, folder=folder / "scratch") is None
