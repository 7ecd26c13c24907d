"""The parameters of preferences: which options fit which loss, and which jobs."""

from typing import Any, get_args

import pytest
from pydantic import ValidationError

from service.contract.spec.spec import JobSpec
from service.contract.tasks import metrics
from service.contract.tasks.preference import LossType, PreferenceSpec
from tests.api.factories import spec


def problems(task: dict[str, Any], **sections: Any) -> str:
    try:
        JobSpec.model_validate(spec(task={"type": "preference", **task}, **sections))
    except ValidationError as error:
        return str(error)
    return ""


class TestLosses:
    @pytest.mark.parametrize(
        ("task", "problem"),
        [
            ({"loss_type": "simpo", "reference": "model"}, "`reference: model` is not used"),
            ({"loss_type": "kto", "reference": "none"}, "compares the model with its reference"),
            ({"loss_type": "apo_zero", "reference": "none"}, "compares the model with its"),
            ({"simpo_gamma": 1.0}, "`simpo_gamma` needs `loss_type: simpo`"),
            ({"desirable_weight": 2}, "`desirable_weight` needs `loss_type: kto`"),
            ({"undesirable_weight": 2}, "`undesirable_weight` needs `loss_type: kto`"),
            ({"beta": 0}, "greater than 0"),
            ({"label_smoothing": 0.5}, "less than 0.5"),
        ],
    )
    def test_contradictions(self, task: dict[str, Any], problem: str) -> None:
        assert problem in problems(task)

    @pytest.mark.parametrize("loss_type", get_args(LossType))
    def test_some_smooth_labels(self, loss_type: str) -> None:
        found = problems({"loss_type": loss_type, "label_smoothing": 0.1})
        smooths = loss_type in {"sigmoid", "robust", "simpo"}
        assert ("is not part of" in found) is not smooths
        assert (found == "") is smooths

    @pytest.mark.parametrize("loss_type", ["sigmoid", "robust", "ipo", "hinge"])
    def test_the_reference_may_be_left_out(self, loss_type: str) -> None:
        assert PreferenceSpec.model_validate({"loss_type": loss_type}).needs_reference()
        assert problems({"loss_type": loss_type, "reference": "none"}) == ""

    @pytest.mark.parametrize("loss_type", ["simpo", "orpo"])
    def test_some_need_none(self, loss_type: str) -> None:
        assert not PreferenceSpec.model_validate({"loss_type": loss_type}).needs_reference()


class TestJobs:
    def test_an_evaluation_has_no_reference(self) -> None:
        sections = {"mode": "evaluate", "training": {}}
        assert "has the finished model only" in problems({}, **sections)
        assert "has the finished model only" not in problems({"reference": "none"}, **sections)

    @pytest.mark.parametrize(
        ("task", "remedy"), [("preference", "`task.label_smoothing`"), ("reward", "has none")]
    )
    def test_class_labels_are_not_smoothed(self, task: str, remedy: str) -> None:
        body = spec(task=task, training={"label_smoothing_factor": 0.1})
        with pytest.raises(ValidationError, match=remedy):
            JobSpec.model_validate(body)


class TestMetrics:
    def test_kto_reports_a_divergence_instead_of_accuracies(self) -> None:
        pairs, single = (
            set(metrics.names(PreferenceSpec.model_validate({"loss_type": name})))
            for name in ("sigmoid", "kto")
        )
        assert pairs ^ single == {"rewards/accuracies", "kl"}

    def test_the_best_model_may_be_chosen_by_them(self) -> None:
        dataset = {"source": "path", "train": "/a.jsonl", "validation": "/b.jsonl"}
        training = {"eval_strategy": "epoch", "metric_for_best_model": "rewards/accuracies"}
        assert problems({}, dataset=dataset, training=training) == ""
        training["metric_for_best_model"] = "rewards/accuracy"
        assert "did you mean `rewards/accuracies`" in problems(
            {}, dataset=dataset, training=training
        )
