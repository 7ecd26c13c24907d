"""Which task answers to which name; the names are what the parameters' `variant` gives."""

from typing import Final

from worker.tasks.base import Task
from worker.tasks.causal_lm import CausalLM
from worker.tasks.fill_mask import FillMask
from worker.tasks.masked_lm import MaskedLM
from worker.tasks.qa_beam_search import BeamSearchQuestionAnswering
from worker.tasks.question_answering import QuestionAnswering
from worker.tasks.summarization import Summarization
from worker.tasks.text_classification import TextClassification
from worker.tasks.text_generation import TextGeneration
from worker.tasks.token_classification import TokenClassification
from worker.tasks.translation import Translation

REGISTRY: Final[dict[str, Task]] = {
    "question-answering": QuestionAnswering(),
    "question-answering/beam-search": BeamSearchQuestionAnswering(),
    "causal-lm": CausalLM(),
    "causal-lm/text-generation": TextGeneration(),
    "masked-lm": MaskedLM(),
    "masked-lm/fill-mask": FillMask(),
    "text-classification": TextClassification(),
    "token-classification": TokenClassification(),
    "summarization": Summarization(),
    "translation": Translation(),
}


def get(name: str) -> Task:
    """The task of a job's spec. KeyError for a name that the contract does not have."""
    return REGISTRY[name]
