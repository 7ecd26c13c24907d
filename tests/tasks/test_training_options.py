"""Smoothed labels of each task."""

from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from service.contract.failures import FailureCode
from tests.training.support.jobs import fails_with
from worker.tasks.classification.text import TextClassificationObjective
from worker.tasks.classification.token import TokenClassificationObjective
from worker.tasks.language_modeling.causal_lm import CausalLMObjective
from worker.tasks.language_modeling.masked_lm import MaskedLMObjective
from worker.tasks.seq2seq.base import Seq2SeqObjective
from worker.training.loss import label_smoothing


class TestLabelSmoothing:
    """Of a task's logits and labels, the sum is that of transformers' LabelSmoother."""

    @pytest.mark.parametrize(
        "objective",
        [
            CausalLMObjective,
            MaskedLMObjective,
            Seq2SeqObjective,
            TokenClassificationObjective,
            TextClassificationObjective,
        ],
    )
    def test_which_tasks_can(self, objective: type[Any]) -> None:
        assert callable(object.__new__(objective).smoothed(0.1))

    @pytest.mark.parametrize("factor", [0.1, 0.7])
    def test_the_sum(self, factor: float) -> None:
        torch.manual_seed(0)
        logits = torch.randn(3, 5, 7)
        labels = torch.randint(7, (3, 5))
        labels[1, 2:] = labels[2, 4] = -100
        ours = label_smoothing.cross_entropies(logits, labels, factor)
        theirs = LabelSmoother(factor)({"logits": logits}, labels, num_items_in_batch=1)
        assert ours.item() == pytest.approx(theirs.item(), rel=1e-6)

    @pytest.mark.parametrize("problem", ["regression", "multi_label_classification"])
    def test_not_of_several_labels_or_numbers(self, problem: str) -> None:
        objective = object.__new__(TextClassificationObjective)
        objective._scheme = SimpleNamespace(problem=problem)  # type: ignore[assignment]
        with fails_with(FailureCode.INVALID_OPTION, f"the problem type is {problem}"):
            objective.logits_and_labels(torch.nn.Identity(), {})
