"""What the service can teach a model, described for clients: columns and parameters."""

import builtins
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from service.contract.parameters import CausalLMSpec, MaskedLMSpec, QuestionAnsweringSpec


@dataclass(frozen=True)
class Column:
    name: str
    required: bool
    description: str


@dataclass(frozen=True)
class TaskDescription:
    type: str
    title: str
    columns: tuple[Column, ...]
    parameters: builtins.type[BaseModel]
    metrics: tuple[str, ...]
    """Names that evaluation reports, each usable as `metric_for_best_model`."""


TASKS: Final[dict[str, TaskDescription]] = {
    "question-answering": TaskDescription(
        type="question-answering",
        title="Extractive question answering (SQuAD v1.1 and v2.0)",
        columns=(
            Column("question", True, "The question, text."),
            Column("context", True, "The passage that holds the answer, text."),
            Column(
                "answers",
                True,
                "{text: [str], answer_start: [int]}, characters into the context; empty lists "
                "when there is no answer (v2). Not needed in the test split.",
            ),
            Column("id", False, "Unique id of the question; default: the row's number."),
        ),
        parameters=QuestionAnsweringSpec,
        metrics=("loss", "exact_match", "f1"),
    ),
    "causal-lm": TaskDescription(
        type="causal-lm",
        title="Causal language modelling",
        columns=(Column("text", True, "A document, text."),),
        parameters=CausalLMSpec,
        metrics=("loss", "perplexity", "accuracy"),
    ),
    "masked-lm": TaskDescription(
        type="masked-lm",
        title="Masked language modelling",
        columns=(Column("text", True, "A document, or a line of one, text."),),
        parameters=MaskedLMSpec,
        metrics=("loss", "perplexity", "accuracy"),
    ),
}
