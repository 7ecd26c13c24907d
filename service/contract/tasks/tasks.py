"""What the service can teach a model, described for clients: columns and parameters."""

import builtins
from dataclasses import dataclass, field
from typing import Final

from pydantic import BaseModel

from service.contract.tasks.chat import ChatSpec
from service.contract.tasks.parameters import (
    CausalLMSpec,
    MaskedLMSpec,
    QuestionAnsweringSpec,
    TextClassificationSpec,
    TokenClassificationSpec,
)
from service.contract.tasks.preference import PreferenceSpec, RewardSpec
from service.contract.tasks.seq2seq import SummarizationSpec, TranslationSpec


@dataclass(frozen=True)
class Column:
    name: str
    required: bool = field(kw_only=True)
    description: str


_PAIR: Final = (
    Column(
        "chosen",
        "The better answer, text or turns; without `prompt` the whole conversation. OpenAI's "
        "`preferred_output` is read as well.",
        required=True,
    ),
    Column("rejected", "The worse answer; likewise (`non_preferred_output`).", required=True),
    Column("prompt", "What both answers reply to, text or turns.", required=False),
    Column("tools", "The tools that the assistant may call, a list.", required=False),
    Column("input", "OpenAI's form of the prompt: {messages, tools}.", required=False),
    Column("preferred_output", "OpenAI's form of `chosen`, turns.", required=False),
    Column("non_preferred_output", "OpenAI's form of `rejected`, turns.", required=False),
)
"""The columns of a row with two answers."""


@dataclass(frozen=True)
class TaskDescription:
    type: str
    title: str
    columns: tuple[Column, ...]
    parameters: builtins.type[BaseModel]
    metrics: tuple[str, ...]
    """Names that evaluation reports, each usable as `metric_for_best_model`."""


_TASKS: Final = (
    TaskDescription(
        type="question-answering",
        title="Extractive question answering (SQuAD v1.1 and v2.0)",
        columns=(
            Column("question", "The question, text.", required=True),
            Column("context", "The passage that holds the answer, text.", required=True),
            Column(
                "answers",
                "{text: [str], answer_start: [int]}, characters into the context; empty lists "
                "when there is no answer (v2). Or the answer alone, text that the context holds "
                "once. Not needed in the test split.",
                required=True,
            ),
            Column(
                "answer_start",
                "Of an answer that is text: the characters of the context before it.",
                required=False,
            ),
            Column("id", "Unique id of the question; default: the row's number.", required=False),
        ),
        parameters=QuestionAnsweringSpec,
        metrics=("loss", "exact_match", "f1"),
    ),
    TaskDescription(
        type="causal-lm",
        title="Causal language modelling",
        columns=(Column("text", "A document, text.", required=True),),
        parameters=CausalLMSpec,
        metrics=("loss", "perplexity", "accuracy"),
    ),
    TaskDescription(
        type="masked-lm",
        title="Masked language modelling",
        columns=(Column("text", "A document, or a line of one, text.", required=True),),
        parameters=MaskedLMSpec,
        metrics=("loss", "perplexity", "accuracy"),
    ),
    TaskDescription(
        type="text-classification",
        title="Text classification",
        columns=(
            Column("text", "The text, or the first of a pair.", required=True),
            Column("text_pair", "The second text of a pair.", required=False),
            Column(
                "label",
                "One label, text or whole number; a list of them; or a number to predict. Not "
                "needed in the test split.",
                required=True,
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
    TaskDescription(
        type="token-classification",
        title="Token classification",
        columns=(
            Column("tokens", "The words, a list of texts.", required=True),
            Column(
                "tags",
                "A tag for each word, text or whole number. Not needed in the test split.",
                required=True,
            ),
        ),
        parameters=TokenClassificationSpec,
        metrics=("loss", "accuracy", "precision", "recall", "f1"),
    ),
    TaskDescription(
        type="summarization",
        title="Summarization",
        columns=(
            Column("text", "The long text.", required=True),
            Column("summary", "The short text. Not needed in the test split.", required=True),
        ),
        parameters=SummarizationSpec,
        metrics=("loss", "rouge1", "rouge2", "rougeL", "rougeLsum", "gen_len"),
    ),
    TaskDescription(
        type="translation",
        title="Translation",
        columns=(
            Column(
                "source", "The text to translate, unless `translation` is given.", required=True
            ),
            Column(
                "target",
                "Its translation, unless `translation` is given. Not needed in the test split.",
                required=True,
            ),
            Column("translation", "Both as the Hub has them: {en: str, ro: str}.", required=False),
        ),
        parameters=TranslationSpec,
        metrics=("loss", "bleu", "gen_len"),
    ),
    TaskDescription(
        type="chat",
        title="Conversations (supervised fine-tuning, SFT)",
        columns=(
            Column(
                "messages",
                "The turns, a list of {role, content}: role is system, developer, user, assistant "
                "or tool; content is text or parts {type: text, text}. An assistant's turn may "
                "have `tool_calls`, and `weight` 0 or 1. Or a prompt and a completion, or an "
                "instruction and an output.",
                required=True,
            ),
            Column("tools", "The tools that the assistant may call, a list.", required=False),
            Column("functions", "What OpenAI had before `tools`, a list.", required=False),
            Column("prompt", "What comes before the completion, text or turns.", required=False),
            Column("completion", "The answer to `prompt`, text or turns.", required=False),
            Column("instruction", "What the user asks for, text.", required=False),
            Column("input", "What the instruction is about, text.", required=False),
            Column("output", "The answer to the instruction, text.", required=False),
        ),
        parameters=ChatSpec,
        metrics=("loss", "perplexity", "accuracy", "exact_match"),
    ),
    TaskDescription(
        type="preference",
        title="Preferences between answers (DPO and its kin)",
        columns=(
            *_PAIR,
            Column("completion", "For `loss_type: kto`: one answer.", required=False),
            Column("label", "Whether `completion` is good, true or false.", required=False),
        ),
        parameters=PreferenceSpec,
        metrics=(
            "loss",
            "rewards/chosen",
            "rewards/rejected",
            "rewards/accuracies",
            "rewards/margins",
            "logps/chosen",
            "logps/rejected",
            "kl",
        ),
    ),
    TaskDescription(
        type="reward",
        title="Reward model (scores of answers)",
        columns=(
            *_PAIR,
            Column(
                "margin",
                "A number, by how much the reward of the better answer must be above the other: "
                "subtracted in the loss, as TRL does. All rows of a split have one, or none.",
                required=False,
            ),
            Column("messages", "`mode: predict`: the conversation to score.", required=False),
            Column("completion", "`mode: predict`: the answer to score.", required=False),
        ),
        parameters=RewardSpec,
        metrics=("loss", "accuracy", "margin", "mean_reward", "min_reward", "max_reward"),
    ),
)
TASKS: Final = {task.type: task for task in _TASKS}
