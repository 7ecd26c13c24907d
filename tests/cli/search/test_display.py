"""How a search and its trials look."""

from datetime import UTC, datetime
from typing import Any

import pytest

from service.cli.search import live_display, page, time_left, trial_table, words
from service.cli.search.snapshots import Snapshot
from tests.cli.jobs.job_pages import recorded, text_of
from tests.cli.search.search_pages import PATHS, make_search, make_snapshot, make_trial, make_trials

NOW = datetime(2026, 1, 1, 12, 2, 0, tzinfo=UTC)


def rendered(snapshot: Snapshot, width: int = 120, height: int = 40) -> list[str]:
    console = recorded(width)
    console.print(live_display.render(snapshot, width, height, NOW))
    return [line.rstrip() for line in text_of(console).splitlines()]


class TestShortNames:
    def test_the_last_part_where_it_is_enough(self) -> None:
        paths = ["training.learning_rate", "peft.r", "name"]
        assert list(words.short_names(paths).values()) == ["learning_rate", "r", "name"]

    def test_more_parts_where_it_is_not(self) -> None:
        paths = ["a.x.r", "b.x.r", "r", "c.r"]
        assert list(words.short_names(paths).values()) == ["a.x.r", "b.x.r", "r", "c.r"]


class TestValues:
    @pytest.mark.parametrize(
        ("value", "shown"),
        [
            (3e-05, "3e-05"),
            (8, "8"),
            (True, "true"),
            (None, "null"),
            ("adamw\x1b[31m", "adamw\\x1b[31m"),
            (["q", "v"], '["q", "v"]'),
        ],
    )
    def test_are_brief_and_escaped(self, value: Any, shown: str) -> None:
        assert words.value(value) == shown

    def test_a_long_one_is_cut(self) -> None:
        assert len(words.value("x" * 500)) == 40


class TestRender:
    def test_every_trial_with_its_values_and_why_it_ended(self) -> None:
        lines = rendered(make_snapshot())
        assert lines[0] == "18a3f2c41b0  squad"
        assert lines[1] == "running  about 7 min 30 s left"
        assert lines[2].startswith("6 of 20 trials: 1 running, 1 paused, 2 complete, 1 pruned, ")
        assert lines[3] == (
            "best: trial 1  f1 81.25  job 18a3f2c4001  learning_rate 4.5e-05  warmup_steps 0"
        )
        shown = {line.split()[0]: " ".join(line.split()[1:]) for line in lines[4:11]}
        assert shown == {
            "trial": "job state done learning_rate warmup_steps last result",
            "5": "18a3f2c4005 running 19% 3e-05 0.1",
            "4": "18a3f2c4004 paused 33% 3e-05 0.1 69.25 at 100 "
            "waits at 100 until it is among the best",
            "1": "18a3f2c4001 complete 4.5e-05 0 f1 81.25",
            "3": "18a3f2c4003 pruned 3e-05 0.1 70.5 at 100 Below the median at 100.",
            "2": "18a3f2c4002 failed 3e-05 0.1 out_of_memory: The batch does not fit.",
            "0": "18a3f2c4000 complete 3e-05 0.1 f1 80.5",
        }

    @pytest.mark.parametrize(("width", "height"), [(80, 24), (60, 18), (100, 12), (200, 60)])
    def test_fits_the_terminal(self, width: int, height: int) -> None:
        snapshot = make_snapshot()
        many = [make_trial(number) for number in range(6, 60)]
        every = Snapshot(snapshot.search, [*snapshot.trials, *many], snapshot.best, {})
        lines = rendered(every, width, height)
        assert len(lines) < height
        assert all(len(line) <= width for line in lines)

    def test_a_search_before_its_first_trial(self) -> None:
        waiting = {"code": "quota", "message": "The project's quota is used up."}
        search = make_search(state="queued", trials={}, best=[], waiting=waiting)
        assert rendered(Snapshot(search, [], [], {})) == [
            "18a3f2c41b0  squad",
            "queued  The project's quota is used up.",
            "0 of 20 trials",
        ]

    def test_a_trial_whose_job_still_waits_or_was_never_made(self) -> None:
        waits = make_trial(0, state="running", job_state="queued", scores=None, ended_at=None)
        refused = make_trial(1, state="failed", job_id=None, job_state=None, progress=None)
        assert (words.state(waits), words.state(refused)) == ("queued", "failed")
        console = recorded()
        objectives = make_search()["objectives"]
        console.print(trial_table.for_terminal([waits, refused], objectives, 100))
        assert text_of(console).splitlines()[1].split()[2] == "queued"

    def test_several_objectives(self) -> None:
        objectives = [
            {"metric": "eval_f1", "direction": "maximize"},
            {"metric": "eval_loss", "direction": "minimize"},
        ]
        best = [make_trial(number, scores=[80.0 + number, 0.5]) for number in range(5)]
        snapshot = Snapshot(make_search(objectives=objectives), best, best, {})
        lines = rendered(snapshot)
        assert lines[3].startswith("best: trial 0  f1 80  loss 0.5  job 18a3f2c4000  learn")
        assert lines[6] == "and 2 more: `finetune search best`"


class TestTimeLeft:
    def test_by_the_mean_of_the_ended_trials_and_how_many_run_at_once(self) -> None:
        running = [make_trial(5, state="running", created_at="2026-01-01T12:01:30Z", ended_at=None)]
        # 16 of 20 are left, two at once, a minute each; half a minute is done.
        assert time_left.estimate(make_search(), [50.0, 70.0], running, NOW) == 465.0

    def test_no_longer_than_the_timeout_and_the_trials_that_run_then(self) -> None:
        search = make_search()
        search["spec"]["timeout_seconds"] = 180.0
        assert time_left.estimate(search, [60.0], [], NOW) == 60.0 + 60.0

    def test_unknown_before_a_trial_has_ended_or_while_it_is_paused(self) -> None:
        assert time_left.estimate(make_search(), [], [], NOW) is None
        assert time_left.estimate(make_search(state="paused"), [60.0], [], NOW) is None


class TestLines:
    def test_each_trial_that_ends_and_each_change_of_the_counts(self) -> None:
        console = recorded(width=200)
        lines = live_display.Lines(console)
        before = make_search(trials={"running": 2}, best=[])
        lines.show(before, Snapshot(before, [], [], {}))
        after = make_snapshot()
        for _ in range(2):
            lines.show(after.search, after)
        assert [line.split("  ")[0] for line in text_of(console).splitlines()] == [
            "2 of 20 trials: 2 running",
            "trial 0 complete: f1 80.5",
            "trial 1 complete: f1 81.25",
            "trial 2 failed: out_of_memory: The batch does not fit.",
            "trial 3 pruned: Below the median at 100.",
            "6 of 20 trials: 1 running, 1 paused, 2 complete, 1 pruned, 1 failed",
            "best: trial 1",
        ]


class TestForScripts:
    def test_nothing_is_cut(self) -> None:
        header, first, *_ = trial_table.for_scripts(make_trials())
        assert header.split("\t") == list(trial_table.COLUMNS)
        assert first.split("\t")[:3] == ["5", "job-18a3f2c4005" + "0" * 21, "running"]
        assert f'"{PATHS[0]}": 3e-05' in first


class TestPage:
    def test_what_it_searches_and_what_is_best(self) -> None:
        console = recorded()
        page.show(console, make_search(), [make_trial(1, scores=[81.25])])
        text = text_of(console)
        assert "objective  maximize f1" in text
        assert "space      training.learning_rate: 1e-06 to 0.001, log" in text
        assert "           training.warmup_steps: 0, 0.1" in text
        assert "pruner     asha, rungs [100, 300], unit steps" in text
        assert "best       trial 1  f1 81.25" in text
        assert "pause, cancel, extend: `finetune search pause 18a3f2c41b0`" in text

    def test_a_condition_of_the_space(self) -> None:
        dimension = {"low": 4, "high": 64, "step": 4, "when": {"peft.type": "lora"}}
        assert page.dimension_words(dimension) == "4 to 64, step 4, where peft.type is lora"

    def test_why_it_failed(self) -> None:
        failure = {"code": "search_failed", "message": "All failed.", "action": "See the trials."}
        console = recorded()
        page.show_result(console, make_search(state="failed", failure=failure), [])
        assert "failure    search_failed: All failed.\nwhat to do See the trials." in text_of(
            console
        )
