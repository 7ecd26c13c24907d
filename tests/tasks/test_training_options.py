"""Options of the training on real tasks: the example, and smoothed labels of each task."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from transformers.trainer_pt_utils import LabelSmoother

from service.contract.events import CheckpointSaved
from service.contract.failures import FailureCode, StageError
from tests.support.models import save_tiny_gpt2
from tests.tasks.examples import example_spec
from tests.tasks.stages import StagedJob
from worker.tasks.classification.text import TextClassificationObjective
from worker.tasks.classification.token import TokenClassificationObjective
from worker.tasks.language_modeling.causal_lm import CausalLMObjective
from worker.tasks.language_modeling.masked_lm import MaskedLMObjective
from worker.tasks.seq2seq.base import Seq2SeqObjective
from worker.training import label_smoothing


class TestExample:
    def test_all_its_options_together(self, tmp_path: Path) -> None:
        body = example_spec("training-options")
        assert body["task"].pop("block_size") == 256  # the tiny model holds 64
        body["model"]["name_or_path"] = str(save_tiny_gpt2(tmp_path / "gpt2"))
        del body["training"]["max_steps"]
        body["training"] |= {"num_train_epochs": 2, "learning_rate": 1e-3}
        (tmp_path / "home").mkdir()
        job = StagedJob(tmp_path / "home", body)
        result, recorder = job.train()
        losses = recorder.train_values("loss")
        assert losses[result.steps] < losses[1]
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
        assert recorder.train_values("num_input_tokens_seen")[1] == 16 * 64
        rates: dict[int, Any] = {**recorder.train_values("learning_rate")}
        assert (rates[1], rates[3]) == (0.0, pytest.approx(1e-3))
        assert rates[result.steps] < rates[3]
        assert len(recorder.of(CheckpointSaved)) == 2


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
        with pytest.raises(StageError, match=f"the problem type is {problem}") as caught:
            objective.logits_and_labels(torch.nn.Identity(), {})
        assert caught.value.failure.code is FailureCode.INVALID_OPTION
