"""worker.training.progress and early_stopping: what a resumed training has to know."""

import json
import math
from typing import Any

import pytest
import torch

from service.contract.failures import FailureCode
from service.contract.spec.training import TrainingSpec
from tests.training.support.jobs import fails_with
from worker.training.distributed.ranks import Ranks
from worker.training.evaluation import early_stopping
from worker.training.progress import BestMetric, LossTally, TrainingProgress


class TestTrainingProgress:
    def test_a_new_training_has_done_nothing(self) -> None:
        state = TrainingProgress().state_dict()
        assert {name: value for name, value in state.items() if value} == {"remade_until": -1}
        numbers = [value for value in state.values() if isinstance(value, int | float)]
        assert sorted(set(numbers)) == [-1, 0]

    def test_its_json_restores_it(self) -> None:
        changed: dict[str, Any] = {"loss_total": 0.1 + 0.2, "evaluation_pending": True}
        progress = TrainingProgress(step=3, best_metric=0.5, baseline={"eval_loss": 2.5}, **changed)
        restored = TrainingProgress()
        restored.load_state_dict(json.loads(json.dumps(progress.state_dict())))
        assert restored == progress

    def test_an_invalid_progress_is_refused(self) -> None:
        with pytest.raises(KeyError):
            TrainingProgress().load_state_dict({"step": 3})


class TestEarlyStopping:
    @pytest.mark.parametrize(
        ("before", "value", "without_gain"),
        [(1.0, 0.8, 4), (1.0, 0.75, 4), (1.0, 0.7, 0), (1.0, 1.5, 4), (None, 9.0, 0)],
        ids=["below the threshold", "equal to it", "above it", "worse", "the first"],
    )
    def test_a_gain_must_exceed_the_threshold(
        self, before: float | None, value: float, without_gain: int
    ) -> None:
        spec = TrainingSpec(
            eval_strategy="epoch", early_stopping_patience=4, early_stopping_threshold=0.25
        )
        progress = TrainingProgress(best_metric=before, evaluations_without_gain=3)
        early_stopping.observe(spec, BestMetric(spec), progress, value)
        assert progress.evaluations_without_gain == without_gain
        assert early_stopping.reached(spec, progress) is (without_gain == 4)

    @pytest.mark.parametrize(
        ("best", "count", "value", "is_first"),
        [
            (None, 1, math.nan, True),
            (None, 1, 0.5, False),
            (None, 2, math.nan, False),
            (0.5, 1, math.nan, False),
        ],
    )
    def test_the_first_evaluation_has_no_number(
        self, best: float | None, count: int, value: float, is_first: bool
    ) -> None:
        progress = TrainingProgress(best_metric=best, evaluations_without_gain=count)
        assert early_stopping.is_first_without_number(progress, value) is is_first

    @pytest.mark.parametrize(
        ("best", "reason"),
        [
            (0.5, "`f1` has not improved in 2 evaluations"),
            (None, "`f1` was not a number in any of 2 evaluations"),
        ],
    )
    def test_explains_why_it_stopped(self, best: float | None, reason: str) -> None:
        progress = TrainingProgress(step=6, best_metric=best, evaluations_without_gain=2)
        sentence = early_stopping.described("f1", progress)
        assert sentence == f"Stopped early at step 6: {reason}"


class TestLossTally:
    def test_the_first_bad_step_is_kept(self) -> None:
        tally = LossTally(torch.device("cpu"), [1.5])
        for step, loss in enumerate([1.0, math.nan, 2.0, math.inf], start=1):
            value = torch.tensor(loss)
            tally.add(step, value, value.isfinite())
        assert tally.first_bad_step() == 2
        tally.reset()
        assert tally.first_bad_step() == 2

    def test_a_saved_total_is_not_rounded(self) -> None:
        assert LossTally(torch.device("cpu"), [0.1]).total() == 0.1

    def test_a_new_one_is_empty(self) -> None:
        tally = LossTally(torch.device("cpu"))
        assert (tally.totals(), tally.first_bad_step()) == ([0.0], None)

    def test_a_bad_first_step_is_kept_as_well(self) -> None:
        tally = LossTally(torch.device("cpu"))
        for step in (1, 2, 3):
            tally.add(step, torch.tensor(math.inf), torch.tensor(False))
        assert tally.first_bad_step() == 1

    def test_the_first_of_all_ranks(self) -> None:
        for theirs, first in ((0, 4), (2, 2), (9, 4)):
            tally = LossTally(torch.device("cpu"), [0.5, 1.5], _SecondRank(theirs))
            tally.add(4, torch.tensor(0.25), torch.tensor(False))
            assert tally.first_bad_step() == first

    def test_each_rank_resumes_from_its_own_share(self) -> None:
        tally = LossTally(torch.device("cpu"), [0.5, 1.5], _SecondRank(0.5))
        tally.add(1, torch.tensor(0.25), torch.tensor(True))
        assert tally.totals() == [0.5, 1.75]
        assert tally.total() == 2.25
        tally.reset()
        assert tally.totals() == [0.5, 0.0]


class _SecondRank(Ranks):
    """The second of two ranks; the first one has `theirs`."""

    def __init__(self, theirs: float) -> None:
        super().__init__(rank=1, world_size=2)
        object.__setattr__(self, "theirs", theirs)

    def all_gather(self, value: Any) -> list[Any]:
        return [self.theirs, value]  # type: ignore[attr-defined]


class TestBestMetric:
    @pytest.mark.parametrize(
        ("name", "greater", "improves"),
        [
            ("eval_loss", None, False),
            ("loss", True, True),
            ("f1", None, True),
            ("f1", False, False),
            ("perplexity", None, False),
            ("eval_easy_perplexity", None, False),
            ("kl", None, False),
            ("perplexity", True, True),
        ],
    )
    def test_direction(self, name: str, greater: bool | None, improves: bool) -> None:
        best = BestMetric(TrainingSpec(metric_for_best_model=name, greater_is_better=greater))
        assert best.is_better(2.0, 1.0) is improves
        assert not best.is_better(1.0, 1.0)

    def test_nan_is_never_the_best(self) -> None:
        best = BestMetric(TrainingSpec(metric_for_best_model="f1"))
        assert not best.is_better(math.nan, None)
        assert best.is_better(0.0, None)

    @pytest.mark.parametrize("name", ["f1", "eval_f1"])
    def test_its_value_has_the_prefix_of_an_evaluation(self, name: str) -> None:
        best = BestMetric(TrainingSpec(metric_for_best_model=name))
        assert best.value_in({"eval_f1": 3.5, "eval_loss": 1.0}) == 3.5

    def test_one_that_is_not_reported(self) -> None:
        best = BestMetric(TrainingSpec(metric_for_best_model="f2"))
        with fails_with(FailureCode.INVALID_OPTION, "reports only: f1, loss") as caught:
            best.value_in({"eval_loss": 1.0, "eval_f1": 3.5})
        assert caught.value.failure.details == {
            "option": "training.metric_for_best_model",
            "given": "f2",
            "known": ["f1", "loss"],
        }

    def test_it_is_the_loss_where_one_is_needed(self) -> None:
        needed = TrainingSpec(eval_strategy="epoch", early_stopping_patience=1)
        best, none = BestMetric(needed), BestMetric(TrainingSpec())
        assert (best.name, best.greater_is_better) == ("loss", False)
        assert best.value_in({"eval_loss": 1.0}) == 1.0
        assert best.is_better(1.0, 2.0)
        assert (none.name, none.value_in({"eval_loss": 1.0})) == (None, None)
        given = {"eval_strategy": "epoch", "early_stopping_patience": 1}
        assert BestMetric(TrainingSpec(**given, metric_for_best_model="f1")).name == "f1"
