"""Task implementations by name; the names are values of the parameters' `variant`."""

from typing import Final

from worker.tasks.base import Task
from worker.tasks.chat.chat import Chat
from worker.tasks.chat.text_generation import ChatGeneration
from worker.tasks.classification.text import TextClassification
from worker.tasks.classification.token import TokenClassification
from worker.tasks.language_modeling.causal_lm import CausalLM
from worker.tasks.language_modeling.fill_mask import FillMask
from worker.tasks.language_modeling.masked_lm import MaskedLM
from worker.tasks.language_modeling.text_generation import TextGeneration
from worker.tasks.preference.reward import Reward
from worker.tasks.preference.task import Preference
from worker.tasks.preference.text_generation import PreferenceGeneration
from worker.tasks.question_answering.beam_search import BeamSearchQuestionAnswering
from worker.tasks.question_answering.task import QuestionAnswering
from worker.tasks.seq2seq.summarization import Summarization
from worker.tasks.seq2seq.translation import Translation

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
    "preference": Preference(),
    "preference/text-generation": PreferenceGeneration(),
    "reward": Reward(),
    "chat": Chat(),
    "chat/text-generation": ChatGeneration(),
}


def get(name: str) -> Task:
    """The task called `name`. Raises KeyError for a name that the contract does not have."""
    return REGISTRY[name]
