import io
from datetime import UTC, datetime
from typing import Any

import pytest
from rich.console import Console

from service.cli.jobs import live_display
from tests.cli.jobs.job_pages import make_job, recorded, text_of


class TestLine:
    def test_stage_phase_step_loss_speed_and_time_left(self) -> None:
        assert live_display.line(make_job()) == (
            "running  train · training  30/120  loss 1.23  14.7 examples/s  ETA 1:15"
        )

    def test_a_waiting_job_shows_its_place(self) -> None:
        job = make_job(state="queued", stage="prepare", phase=None, progress=None, queue_position=3)
        assert live_display.line(job) == "queued  prepare · waiting, number 3 in the queue"

    def test_a_loss_that_is_not_finite_is_shown(self) -> None:
        progress = {"step": 1, "of": 2, "percent": 50.0, "loss": "NaN"}
        assert live_display.line(make_job(progress=progress)).endswith("1/2  loss NaN")

    def test_rows_of_an_unknown_number_are_only_counted(self) -> None:
        progress = {"step": 211, "of": 0, "percent": None}
        job = make_job(stage="prepare", phase="checking", progress=progress)
        assert live_display.line(job) == "running  prepare · checking  211"


class TestRender:
    def test_one_line_even_on_a_narrow_terminal(self) -> None:
        console = recorded(width=80)
        console.print(live_display.render(make_job()))
        (line,) = text_of(console).splitlines()
        assert line.startswith("train · training  ━")
        assert line.endswith("30/120  loss 1.23  14.7 examples/s  ETA 1:15")

    @pytest.mark.parametrize("state", ["pausing", "cancelling"])
    def test_says_that_a_job_is_stopping(self, state: str) -> None:
        console = recorded(width=100)
        console.print(live_display.render(make_job(state=state)))
        assert text_of(console).startswith(f"train · training · {state}  ━")


class TestLines:
    def test_prints_only_changes(self) -> None:
        console = recorded()
        lines = live_display.Lines(console)
        progress = make_job()["progress"]
        for percent in (20.0, 25.0, 29.9, 30.0):
            lines.show(make_job(progress={**progress, "percent": percent}), [])
        lines.show(make_job(phase="evaluating"), [])
        assert len(text_of(console).splitlines()) == 3


EVENTS: list[dict[str, Any]] = [
    {"type": "stage_started", "data": {"stage": "prepare", "worker": "w", "gpus": []}},
    {"type": "phase", "data": {"phase": "checking"}},
    {"type": "notice", "data": {"message": "[red] 2 rows left out", "data": {}}},
    {"kind": "train", "step": 5, "epoch": 0.1, "values": {"loss": 1.0}},
    {"kind": "eval", "step": 5, "epoch": 0.1, "values": {"eval_f1": 48.2}},
    {
        "kind": "system",
        "step": 9,
        "values": {
            "memory_rss_bytes": 1.5 * 1024**3,
            "gpu_0_memory_used_bytes": 2.0 * 1024**3,
            "gpu_1_memory_used_bytes": 1.0 * 1024**3,
        },
    },
]
ITEMS = [{"seq": n, "at": "2026-01-01T00:00:00Z", **item} for n, item in enumerate(EVENTS, 1)]


class TestHistory:
    """Evaluations and notices leave a line; memory is part of the bar."""

    def test_in_a_log(self) -> None:
        console = recorded()
        live_display.Lines(console).show(make_job(), ITEMS)
        lines = text_of(console).splitlines()
        assert [line[9:] for line in lines[:2]] == [
            "[red] 2 rows left out",
            "evaluation at step 5: f1 48.2",
        ]
        assert lines[2].endswith("ETA 1:15  RAM 1.5 GiB  GPU 3.0 GiB")

    def test_the_bar_goes_when_the_job_has_ended(self) -> None:
        console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
        with live_display.LiveBar(console) as bar:
            bar.show(make_job(), ITEMS)
            bar.show(make_job(state="succeeded"), [])
        erase_line = "\x1b[2K"
        assert text_of(console).endswith(erase_line)

    def test_a_message_is_not_mixed_with_the_bar(self) -> None:
        console = Console(file=io.StringIO(), width=100, force_terminal=True, color_system=None)
        with live_display.LiveBar(console) as bar:
            bar.show(make_job(), ITEMS)
            bar.say("The service does not answer.")
        (line,) = [line for line in text_of(console).splitlines() if "does not answer" in line]
        assert "━" not in line


class TestWaiting:
    NOW = datetime(2026, 1, 1, 12, 0, 0, tzinfo=UTC)

    def waiting(self, **changes: Any) -> dict[str, Any]:
        why = {
            "reason": "backoff",
            "message": "retry 2 of 3: could not reach the Hub",
            "until": "2026-01-01T12:00:17Z",
            **changes,
        }
        return make_job(state="queued", phase=None, progress=None, waiting=why)

    @pytest.mark.parametrize(
        ("until", "shown"),
        [("12:00:17", "in 17 s"), ("12:01:17", "in 1 min 17 s"), ("11:59:58", "now")],
    )
    def test_a_retry_is_counted_down(self, until: str, shown: str) -> None:
        job = self.waiting(until=f"2026-01-01T{until}Z")
        for width in (80, 100):
            console = recorded(width)
            console.print(live_display.render(job, "", self.NOW))
            (line,) = text_of(console).splitlines()
            wanted = f"train · waiting: retry 2 of 3 {shown}: could not reach the Hub"
            assert line.rstrip() == wanted

    def test_in_a_log_it_has_a_time_and_no_line_for_each_second(self) -> None:
        console = recorded()
        lines = live_display.Lines(console)
        for _ in range(3):
            lines.show(self.waiting(), [])
        (line,) = text_of(console).splitlines()
        at = datetime(2026, 1, 1, 12, 0, 17, tzinfo=UTC).astimezone()
        assert f"waiting: retry 2 of 3 at {at:%H:%M:%S}: could not reach the Hub" in line

    def test_another_reason_is_shown_as_it_is(self) -> None:
        job = self.waiting(reason="no_worker", message="no live worker has 4 GPUs", until=None)
        assert live_display.line(job) == "queued  train · waiting: no live worker has 4 GPUs"
