"""From which score on a question counts as having no answer (SQuAD v2): given, found on the
validation set and kept in the finished model's config, or read from there."""

import math
from dataclasses import replace
from typing import Any, Final

from service.contract.parameters import QuestionAnsweringSpec
from service.contract.spec import JobSpec
from service.contract.splits import is_validation
from worker.failures import invalid_option
from worker.tasks.question_answering import metrics
from worker.tasks.question_answering.postprocessing import Answers

FIELD: Final = "null_score_diff_threshold"
"""Of the spec, and of a model's config."""


class Threshold:
    """With `auto` all questions are answered first; the threshold then removes some answers."""

    def __init__(self, value: float | None, *, is_auto: bool = False, finds: bool = False) -> None:
        """`finds`: every evaluation of the validation set finds it anew."""
        self._value = value
        self._is_auto = is_auto
        self._finds = finds

    @classmethod
    def of(cls, spec: JobSpec, parameters: QuestionAnsweringSpec, config: Any) -> "Threshold":
        """A training takes the one of its base model, found for other weights, out of the `config`.

        StageError(invalid_option): `auto` without a training, of a model that has none.
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
        """The threshold to choose answers with."""
        if self._is_auto:
            return math.inf
        assert self._value is not None
        return self._value

    def applied(
        self, split: str, golds: metrics.Golds, answers: Answers
    ) -> tuple[Answers, dict[str, float]]:
        """What is left of the answers that were chosen by `at_first`, and what is found here, for
        the model's config."""
        if not self._is_auto:
            return answers, {}
        found = {}
        if self._finds and is_validation(split):
            best = metrics.squad_v2(golds, answers.predictions, answers.null_odds)
            self._value = found[FIELD] = best["best_f1_thresh"]
        assert self._value is not None, "a validation set is evaluated before the test set"
        kept = {
            key: "" if answers.null_odds[key] > self._value else text
            for key, text in answers.predictions.items()
        }
        return replace(answers, predictions=kept), found
