import os
import signal
import threading
from pathlib import Path

import psutil
import pytest

from tests.support.servers.services import wait_until
from worker.doctor import isolated
from worker.doctor.check import GPU, TORCH, Check, Context, TorchView
from worker.doctor.isolated import ProcessResult
from worker.doctor.runner import Examination, lacks

ROOT = Path(__file__).resolve().parents[2]


def check(name: str, *, seconds: float = 60, needs: tuple[str, ...] = ()) -> Check:
    return Check(name, name, f"bad_checks:{name}", seconds, needs=needs)


@pytest.fixture(autouse=True)
def _here(monkeypatch: pytest.MonkeyPatch, processes: None) -> None:
    monkeypatch.setenv("PYTHONPATH", str(ROOT))
    # Asked once for all, in test_command: it takes a process that imports torch.
    monkeypatch.setattr(Examination, "_context", lambda done: Context(scratch=done.scratch))


def examine(folder: Path, *checks: Check, in_background: bool = False) -> Examination:
    done = Examination(checks, folder, in_background, package="tests.doctor")
    done.run(lambda _: None)
    return done


def has_ended(folder: Path) -> bool:
    """Whether the check that hangs, and what it started, have ended."""
    pids = [int((folder / name).read_text()) for name in ("child", "grandchild")]
    left = [psutil.Process(pid) for pid in pids if psutil.pid_exists(pid)]
    return all(process.status() == psutil.STATUS_ZOMBIE for process in left)


class TestEachCheck:
    @pytest.mark.usefixtures("processes")
    def test_a_crash_is_one_failed_line_and_the_rest_is_run(self, tmp_path: Path) -> None:
        lines = examine(tmp_path, check("crash"), check("die"), check("good")).lines
        assert [line.finding.status for line in lines] == ["failed", "failed", "ok"]
        assert lines[0].finding.reason.endswith("ValueError: two is not three")
        assert lines[1].finding.summary == f"the check's process ended with signal {signal.SIGSEGV}"
        assert all(line.finding.remedy for line in lines[:2])
        assert lines[2].finding.data == {"device": "cpu", "gpus": 0}
        # What a check wrote is removed.
        assert [*map(str, tmp_path.rglob("good*"))] == []

    @pytest.mark.usefixtures("processes")
    def test_one_that_hangs_is_killed_with_all_that_it_started(self, tmp_path: Path) -> None:
        [line] = examine(tmp_path, check("hang", seconds=3)).lines
        assert line.finding.status == "failed"
        assert line.finding.summary == "did not end within 3 s and was killed"
        assert line.finding.reason == "waiting for a GPU that never answers"
        assert has_ended(tmp_path)

    @pytest.mark.usefixtures("processes")
    def test_an_interrupt_ends_the_one_at_hand_and_leaves_the_rest(self, tmp_path: Path) -> None:
        def interrupt() -> None:
            wait_until((tmp_path / "child").exists, 60, "the check that hangs")
            os.kill(os.getpid(), signal.SIGINT)

        threading.Thread(target=interrupt).start()
        done = examine(tmp_path, check("good"), check("hang"), check("good"))
        assert done.interrupted
        assert [line.finding.status for line in done.lines] == ["ok", "not_run", "not_run"]
        assert done.lines[1].finding.reason == "the doctor was interrupted"
        assert has_ended(tmp_path)

    def test_one_in_the_background_has_ten_times_as_long(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        limits = []

        def run(*_: object, seconds: float) -> ProcessResult:
            limits.append(seconds)
            return ProcessResult(None, "", None)

        monkeypatch.setattr(isolated, "run", run)
        [line] = examine(tmp_path, check("good", seconds=3), in_background=True).lines
        assert limits == [30]
        assert line.finding.summary == "did not end within 30 s and was killed"


class TestNeeds:
    NO_GPU = Context(scratch=Path())
    UNUSABLE = Context(scratch=Path(), gpus=[{"type": "cuda"}])
    ONE = Context(scratch=Path(), torch=TorchView(available=True, devices=[{"index": 0}]))

    @pytest.mark.parametrize(
        ("need", "context", "reason"),
        [
            (GPU, NO_GPU, "this machine has no NVIDIA GPU"),
            (GPU, UNUSABLE, "torch cannot use this machine's GPU: see the check `torch`"),
            (TORCH, NO_GPU, "torch cannot be imported: see the check `torch`"),
            ("no_such_package", ONE, "the package no_such_package is not installed"),
        ],
    )
    def test_the_reason_names_what_is_missing(
        self, need: str, context: Context, reason: str
    ) -> None:
        found = lacks(check("good", needs=(need,)), context)
        assert found is not None
        assert (found.status, found.reason) == ("not_run", reason)

    def test_what_is_there_is_run(self) -> None:
        assert lacks(check("good", needs=(GPU, "pynvml")), self.ONE) is None

    def test_one_that_lacks_something_starts_no_process(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(isolated, "run", None)
        [line] = examine(tmp_path, check("good", needs=(GPU,))).lines
        assert line.finding.status == "not_run"
