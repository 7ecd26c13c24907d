"""The metrics that an evaluation of a task reports, as far as the spec decides it."""

from collections.abc import Iterator
from difflib import get_close_matches
from typing import Final

from service.contract.tasks.chat import ChatSpec
from service.contract.tasks.metric_directions import greater_is_better
from service.contract.tasks.parameters import (
    QuestionAnsweringSpec,
    TaskSpec,
    TextClassificationSpec,
    TokenClassificationSpec,
)
from service.contract.tasks.preference import PreferenceSpec
from service.contract.tasks.seq2seq import SummarizationSpec, TranslationSpec
from service.contract.tasks.tasks import TASKS

_SQUAD_V2: Final = (
    "total",
    *(f"{group}_{name}" for group in ("HasAns", "NoAns") for name in ("exact", "f1", "total")),
    *(f"best_{name}{end}" for name in ("exact", "f1") for end in ("", "_thresh")),
)
_OF_LABELS: Final = ("loss", "accuracy", "f1", "f1_macro", "f1_weighted")
_TEXT_CLASSIFICATION: Final = {
    "single_label_classification": (*_OF_LABELS, "matthews_correlation"),
    "multi_label_classification": (*_OF_LABELS, "f1_micro"),
    "regression": ("loss", "pearson", "spearmanr"),
}
_WITHOUT_RESULTS: Final = ("loss", "perplexity", "accuracy")
_OF_EACH_TYPE: Final = ("_precision", "_recall", "_f1", "_number")
"""Token classification reports them for each type of span, whose names the data decides."""


def names(task: TaskSpec) -> tuple[str, ...]:
    """The metrics of one validation set, without `eval_`; of a text classification whose kind the
    data decides, those of every kind."""
    if isinstance(task, TextClassificationSpec) and task.problem_type is not None:
        return _TEXT_CLASSIFICATION[task.problem_type]
    if isinstance(task, SummarizationSpec | TranslationSpec) and not task.predict_with_generate:
        return ("loss",)
    if isinstance(task, ChatSpec) and not task.scores_results():
        return _WITHOUT_RESULTS
    if isinstance(task, QuestionAnsweringSpec) and task.version_2_with_negative:
        return (*TASKS[task.type].metrics, *_SQUAD_V2)
    if isinstance(task, PreferenceSpec):
        absent = "rewards/accuracies" if task.loss_type == "kto" else "kl"
        return tuple(name for name in TASKS[task.type].metrics if name != absent)
    return TASKS[task.type].metrics


def is_reported(task: TaskSpec, name: str) -> bool:
    if isinstance(task, TokenClassificationSpec) and name.endswith(_OF_EACH_TYPE):
        return True
    return name in names(task)


def unreported(
    task: TaskSpec,
    metric: str,
    sets: tuple[str, ...],
    option: str = "training.metric_for_best_model",
) -> Iterator[str]:
    """A sentence if no evaluation reports `metric`, which `option` names. `sets`: names of several
    validation sets."""
    name = metric.removeprefix("eval_")
    if not sets:
        known, found = names(task), is_reported(task, name)
    else:
        known = tuple(f"{each}_{known}" for each in sets for known in names(task))
        found = any(
            is_reported(task, name.removeprefix(f"{each}_"))
            for each in sets
            if name.startswith(f"{each}_")
        )
    if not found:
        listed = ", ".join(f"`{each}`" for each in known[:20]) + (", …" if known[20:] else "")
        near = get_close_matches(name[:60], known, 1, cutoff=0.5)
        hint = f"; did you mean `{near[0]}`?" if near else ""
        yield (
            f"`{option}` is `{name[:60]}`, which the evaluation does not report; it reports "
            f"{listed}{hint}"
        )


def undirected(
    task: TaskSpec,
    metric: str,
    option: str = "training.metric_for_best_model",
    direction: str = "training.greater_is_better",
) -> Iterator[str]:
    """A sentence if neither a greater nor a lower value of `metric`, which `option` names, is
    better, so that the field `direction` must decide."""
    if greater_is_better(metric) is None:
        known = ", ".join(
            f"`{name}`" for name in names(task) if greater_is_better(name) is not None
        )
        yield (
            f"`{option}` is `{metric[:60]}`, for which no direction is better: set "
            f"`{direction}`, or choose one of {known}"
        )


def depends_on_data(task: TaskSpec, name: str) -> bool:
    """Whether the data decides if `name` is reported: of a text classification whose kind is not
    given."""
    if not isinstance(task, TextClassificationSpec) or task.problem_type is not None:
        return False
    return any(name not in reported for reported in _TEXT_CLASSIFICATION.values())
