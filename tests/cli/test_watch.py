import io
from typing import Any

import pytest
from rich.console import Console

from service.cli import watch
from service.cli.client import UnreachableError


def make_job(**changes: Any) -> dict[str, Any]:
    return {
        "id": "job-1",
        "state": "running",
        "stage": "train",
        "phase": "training",
        "progress": {
            "step": 30,
            "of": 120,
            "percent": 25.0,
            "epoch": 0.5,
            "loss": 1.23456,
            "examples_per_second": 14.72,
            "eta_seconds": 75.2,
        },
        "queue_position": None,
        "failure": None,
        "result": None,
        "mlflow_url": None,
        "hub_url": None,
        **changes,
    }


def recorded(width: int = 160) -> Console:
    return Console(file=io.StringIO(), width=width, force_terminal=False)


def text_of(console: Console) -> str:
    assert isinstance(console.file, io.StringIO)
    return console.file.getvalue()


class TestLine:
    def test_stage_phase_step_loss_speed_and_time_left(self) -> None:
        assert watch.line(make_job()) == (
            "running  train · training  30/120  loss 1.23  14.7 examples/s  ETA 1:15"
        )

    def test_a_waiting_job_shows_its_place(self) -> None:
        job = make_job(state="queued", stage="prepare", phase=None, progress=None, queue_position=3)
        assert watch.line(job) == "queued  prepare · waiting, number 3 in the queue"

    def test_a_loss_that_is_not_finite_is_shown(self) -> None:
        progress = {"step": 1, "of": 2, "percent": 50.0, "loss": "NaN"}
        assert watch.line(make_job(progress=progress)).endswith("1/2  loss NaN")

    def test_rows_of_an_unknown_number_are_only_counted(self) -> None:
        progress = {"step": 211, "of": 0, "percent": None}
        job = make_job(stage="prepare", phase="checking", progress=progress)
        assert watch.line(job) == "running  prepare · checking  211"


class TestClock:
    @pytest.mark.parametrize(
        ("seconds", "shown"), [(0, "0:00"), (59.6, "1:00"), (75, "1:15"), (3675, "1:01:15")]
    )
    def test_minutes_and_hours(self, seconds: float, shown: str) -> None:
        assert watch.clock(seconds) == shown


class TestRender:
    def test_one_line_even_on_a_narrow_terminal(self) -> None:
        console = recorded(width=80)
        console.print(watch.render(make_job()))
        (line,) = text_of(console).splitlines()
        assert line.startswith("train · training  ━")
        assert line.endswith("30/120  loss 1.23  14.7 examples/s  ETA 1:15")

    def test_the_bar_is_as_long_as_the_percentage(self) -> None:
        lengths = []
        for percent in (25.0, 75.0):
            console = recorded()
            progress = {**make_job()["progress"], "percent": percent}
            console.print(watch.render(make_job(progress=progress)))
            lengths.append(text_of(console).count("━"))  # without colour the rest is blank
        assert lengths[1] == pytest.approx(3 * lengths[0], abs=3)


class TestLines:
    def test_prints_only_changes(self) -> None:
        console = recorded()
        lines = watch.Lines(console)
        progress = make_job()["progress"]
        for percent in (20.0, 25.0, 29.9, 30.0):
            lines.show(make_job(progress={**progress, "percent": percent}))
        lines.show(make_job(phase="evaluating"))
        assert len(text_of(console).splitlines()) == 3


class TestLiveBar:
    def test_a_stage_that_is_done_leaves_a_line(self) -> None:
        console = Console(file=io.StringIO(), width=160, force_terminal=True)
        with watch.LiveBar(console) as bar:
            bar.show(make_job(stage="prepare"))
            bar.show(make_job(stage="train"))
        assert "✓" in text_of(console)
        assert "prepare" in text_of(console)


class FakePages:
    """Answers of a service, one per call; an exception is raised."""

    def __init__(self, *answers: Any) -> None:
        self._answers = list(answers)

    def get(self, _path: str) -> Any:
        answer = self._answers.pop(0)
        if isinstance(answer, Exception):
            raise answer
        return answer


class TestFollow:
    def test_continues_while_the_service_restarts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(watch, "POLL_SECONDS", 0)
        shown: list[str] = []
        pages = FakePages(make_job(), UnreachableError("unreachable"), make_job(state="succeeded"))
        job = watch.follow(pages, "job-1", lambda page: shown.append(page["state"]))  # type: ignore[arg-type]
        assert shown == ["running", "succeeded"]
        assert watch.exit_status(job) == 0

    def test_gives_up_if_the_service_stays_unreachable(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(watch, "UNREACHABLE_SECONDS", -1)
        with pytest.raises(UnreachableError):
            watch.follow(FakePages(UnreachableError("unreachable")), "job-1", print)  # type: ignore[arg-type]

    @pytest.mark.parametrize("state", ["failed", "cancelled"])
    def test_the_status_of_a_bad_end_is_1(self, state: str) -> None:
        assert watch.exit_status(make_job(state=state)) == 1


class TestShowResult:
    def test_metrics_before_and_after_and_where_things_are(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = {
            "metrics": {"eval_f1": 48.25, "train_loss": 1.5},
            "baseline": {"eval_f1": 5.125},
            "model_path": "jobs/job-1/output",
        }
        job = make_job(state="succeeded", result=result, mlflow_url="http://m/#/experiments/1")
        watch.show_result(job)
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [
            ["job-1", "succeeded"],
            ["metric", "before", "after"],
            ["eval_f1", "5.125", "48.25"],
            ["train_loss", "1.5"],
            ["model", "jobs/job-1/output"],
            ["MLflow", "http://m/#/experiments/1"],
        ]

    def test_a_job_without_training_has_scores_and_files(
        self, capsys: pytest.CaptureFixture[str]
    ) -> None:
        result = {
            "metrics": {"eval_loss": 1.5, "eval_f1": 48.25},
            "baseline": {},
            "artifacts": [{"name": "predictions.json"}, {"name": "data_report.json"}],
        }
        watch.show_result(make_job(state="succeeded", result=result, spec={"mode": "evaluate"}))
        lines = [line.split() for line in capsys.readouterr().out.splitlines()]
        assert lines == [
            ["job-1", "succeeded"],
            ["metric", "value"],
            ["eval_f1", "48.25"],
            ["eval_loss", "1.5"],
            ["files", "predictions.json,", "data_report.json"],
        ]

    def test_a_failure_shows_the_action(self, capsys: pytest.CaptureFixture[str]) -> None:
        failure = {"code": "missing_column", "message": "no [context]", "action": "Map it."}
        watch.show_result(make_job(state="failed", failure=failure))
        out = capsys.readouterr().out
        assert "missing_column: no [context]\nWhat to do: Map it.\n" in out
