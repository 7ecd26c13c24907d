"""What the service can teach a model, described for clients: columns and parameters."""

import builtins
from dataclasses import dataclass
from typing import Final

from pydantic import BaseModel

from service.contract.parameters import (
    CausalLMSpec,
    MaskedLMSpec,
    QuestionAnsweringSpec,
    TextClassificationSpec,
    TokenClassificationSpec,
)
from service.contract.seq2seq import SummarizationSpec, TranslationSpec


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
    "text-classification": TaskDescription(
        type="text-classification",
        title="Text classification",
        columns=(
            Column("text", True, "The text, or the first of a pair."),
            Column("text_pair", False, "The second text of a pair."),
            Column(
                "label",
                True,
                "One label, text or whole number; a list of them; or a number to predict. Not "
                "needed in the test split.",
            ),
        ),
        parameters=TextClassificationSpec,
        metrics=(
            "loss",
            "accuracy",
            "f1",
            "f1_macro",
            "f1_micro",
            "f1_weighted",
            "matthews_correlation",
            "pearson",
            "spearmanr",
        ),
    ),
    "token-classification": TaskDescription(
        type="token-classification",
        title="Token classification",
        columns=(
            Column("tokens", True, "The words, a list of texts."),
            Column(
                "tags",
                True,
                "A tag for each word, text or whole number. Not needed in the test split.",
            ),
        ),
        parameters=TokenClassificationSpec,
        metrics=("loss", "accuracy", "precision", "recall", "f1"),
    ),
    "summarization": TaskDescription(
        type="summarization",
        title="Summarization",
        columns=(
            Column("text", True, "The long text."),
            Column("summary", True, "The short text. Not needed in the test split."),
        ),
        parameters=SummarizationSpec,
        metrics=("loss", "rouge1", "rouge2", "rougeL", "rougeLsum", "gen_len"),
    ),
    "translation": TaskDescription(
        type="translation",
        title="Translation",
        columns=(
            Column("source", True, "The text to translate, unless `translation` is given."),
            Column(
                "target",
                True,
                "Its translation, unless `translation` is given. Not needed in the test split.",
            ),
            Column("translation", False, "Both as the Hub has them: {en: str, ro: str}."),
        ),
        parameters=TranslationSpec,
        metrics=("loss", "bleu", "gen_len"),
    ),
}
