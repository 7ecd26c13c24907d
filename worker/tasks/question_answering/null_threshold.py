"""The null score above which a question has no answer (SQuAD v2): given in the spec, found on the
validation set and saved in the finished model's config, or read from the config."""

import math
from dataclasses import replace
from typing import Any, Final

from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import is_validation
from service.contract.tasks.parameters import QuestionAnsweringSpec
from worker.failures import invalid_option
from worker.tasks.question_answering import metrics
from worker.tasks.question_answering.postprocessing import Answers

FIELD: Final = "null_score_diff_threshold"
"""The name of the field in the spec and in a model's config."""


class Threshold:
    """With `auto` all questions are answered first; the threshold then removes some answers."""

    def __init__(self, value: float | None, *, is_auto: bool = False, finds: bool = False) -> None:
        """`finds`: every evaluation of the validation set determines the threshold again."""
        self._value = value
        self._is_auto = is_auto
        self._finds = finds

    @classmethod
    def for_job(cls, spec: JobSpec, parameters: QuestionAnsweringSpec, config: Any) -> "Threshold":
        """A training removes the base model's threshold, found for other weights, from `config`.

        Raises StageError(invalid_option) for `auto` if the job neither trains nor has a model with
        a threshold.
        """
        own = getattr(config, FIELD, None)
        if spec.trains and own is not None:
            delattr(config, FIELD)
        if parameters.null_score_diff_threshold != "auto":
            return cls(parameters.null_score_diff_threshold)
        if not spec.trains and own is None:
            raise invalid_option(
                f"task.{FIELD}",
                f"is `auto`, but the model's config has no `{FIELD}`: it was not "
                "trained with `auto`. Give a number",
            )
        return cls(own, is_auto=True, finds=spec.trains)

    @property
    def at_first(self) -> float:
        """The threshold with which to choose answers first."""
        if self._is_auto:
            return math.inf
        assert self._value is not None
        return self._value

    def applied(
        self, split: str, golds: metrics.Golds, answers: Answers
    ) -> tuple[Answers, dict[str, float]]:
        """The answers that remain with the final threshold, and the fields to save in the model's
        config. `answers` were chosen with `at_first`."""
        if not self._is_auto:
            return answers, {}
        found = {}
        if self._finds and is_validation(split):
            best = metrics.squad_v2(golds, answers.predictions, answers.null_odds)
            self._value = found[FIELD] = best["best_f1_thresh"]
        assert self._value is not None, "the validation set must be evaluated before the test set"
        kept = {
            key: "" if answers.null_odds[key] > self._value else text
            for key, text in answers.predictions.items()
        }
        return replace(answers, predictions=kept), found
