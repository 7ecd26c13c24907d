"""worker.training.fast_paths: a resumed training takes the paths that it began with."""

import json
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from service.contract.failures import FailureCode
from tests.training.support.jobs import Job, fails_with, run
from worker.training import loop
from worker.training.checkpointing import state
from worker.training.distributed.ranks import Ranks
from worker.training.fast_paths import FastPaths
from worker.training.run import TrainingRun

OPTIONS = {"max_steps": 4, "save_steps": 2}


class TestChoose:
    def test_measures_once(self) -> None:
        measured = iter([5])
        paths = FastPaths()
        assert paths.choose("rows", lambda: next(measured)) == 5
        assert paths.choose("rows", lambda: next(measured)) == 5
        assert paths.chosen == {"rows": 5}

    def test_a_resumed_training_measures_nothing(self) -> None:
        def measure() -> int:
            raise AssertionError

        paths = FastPaths(chosen={"rows": 5})
        assert paths.choose("rows", measure) == 5
        assert paths.chosen == {"rows": 5}

    def test_of_several_processes_the_first_one_measures_for_all(self) -> None:
        class Second(Ranks):
            def broadcast(self, value: Any, _source: int = 0) -> Any:
                return {"mine": "the first one's"}[value]

        paths = FastPaths(Second(rank=1, world_size=2))
        assert paths.choose("path", lambda: "mine") == "the first one's"


class TestCheckpoints:
    @pytest.fixture
    def found(self, monkeypatch: pytest.MonkeyPatch) -> list[str]:
        """What each training chose when each measurement gives another result."""
        choices: list[str] = []
        measured: Iterator[str] = iter(["first", "second"])
        train = loop.train

        def choosing(training: TrainingRun) -> loop.Outcome:
            paths = training.state.fast_paths
            choices.append(paths.choose("path", lambda: next(measured)))
            return train(training)

        monkeypatch.setattr(loop, "train", choosing)
        return choices

    def test_hold_what_was_chosen(self, make_job: Callable[..., Job], found: list[str]) -> None:
        job = make_job(**OPTIONS)
        run(job.request(1))
        kept = job.checkpoint(2)
        assert json.loads((kept / "progress.json").read_text())["fast_paths"]["path"] == "first"
        run(job.request(2, resume_from=kept))
        again = job.workspace / "attempts" / "2" / "checkpoints" / "4"
        assert state.read_progress(again)["fast_paths"]["path"] == "first"
        assert found == ["first", "first"]

    def test_that_are_damaged_are_reported(
        self, make_job: Callable[..., Job], found: list[str]
    ) -> None:
        job = make_job(**OPTIONS)
        run(job.request(1))
        kept = job.checkpoint(2)
        (kept / "progress.json").write_text("{")
        with fails_with(FailureCode.CHECKPOINT_UNREADABLE):
            state.read_progress(kept)
