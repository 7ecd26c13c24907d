"""The parameters of each task: one class per task, selected by `type`."""

from collections import Counter
from collections.abc import Iterator
from typing import Annotated, Final, Literal

from pydantic import AfterValidator, BeforeValidator, Field

from service.contract.fields.bounds import LARGEST, MOST_TOKENS
from service.contract.fields.section import rule
from service.contract.fields.types import Name, TaskParametersModel, Text
from service.contract.tasks.chat import ChatSpec, Packing
from service.contract.tasks.preference import PreferenceSpec, RewardSpec
from service.contract.tasks.seq2seq import GenerationSpec, SummarizationSpec, TranslationSpec

NEW_TOKENS: Final = 64
"""With which `causal-lm` continues a text, unless a job says otherwise."""

Threshold = Annotated[float, Field(ge=-LARGEST, le=LARGEST)]


class QuestionAnsweringSpec(TaskParametersModel):
    """Extractive question answering as SQuAD defines it, v1.1 and v2.0."""

    type: Literal["question-answering"] = "question-answering"
    version_2_with_negative: bool = Field(
        default=False, description="Some questions have no answer (SQuAD v2)."
    )
    max_seq_length: int = Field(
        384, ge=8, le=MOST_TOKENS, description="Tokens of question, context and specials."
    )
    doc_stride: int = Field(
        128, ge=1, le=MOST_TOKENS, description="Tokens that two windows of a context share."
    )
    n_best_size: int = Field(20, ge=1, le=1000)
    max_answer_length: int = Field(
        30, ge=1, le=MOST_TOKENS, description="Tokens of the longest answer considered."
    )
    null_score_diff_threshold: Threshold | Literal["auto"] = Field(
        0.0,
        description="v2: no answer when the null score beats the best span by more than this; with "
        "`head: beam-search` when the answer's impossibility is above this. `auto`: the threshold "
        "with the best F1 on the validation set (the official script's `best_f1_thresh`, of the "
        "answers without a threshold; 0 where no answer at all is best). Each evaluation finds its "
        "own for its metrics and predictions; that of the finished model is kept in its "
        "config.json under this name and used for `test`. Jobs that do not train read it there.",
    )
    head: Literal["span", "beam-search"] = Field(
        "span", description="beam-search: XLNet's, which looks for ends given the best starts."
    )
    start_n_top: int | None = Field(
        None, ge=1, le=1000, description="Beam search: number of start positions; default: 5."
    )
    end_n_top: int | None = Field(
        None, ge=1, le=1000, description="Beam search: end positions for each start; default: 5."
    )

    def variant(self) -> str:
        return self.type if self.head == "span" else f"{self.type}/{self.head}"

    def uses_validation_threshold(self) -> bool:
        return self.null_score_diff_threshold == "auto"

    def beams(self) -> tuple[int, int]:
        """Starts, and ends of each, that the beam search keeps."""
        return self.start_n_top or 5, self.end_n_top or 5

    @rule
    def _beams_fit_the_head(self) -> Iterator[str]:
        if self.head == "span" and (self.start_n_top or self.end_n_top):
            yield "`start_n_top` and `end_n_top` need `head: beam-search`"
        if self.head == "beam-search" and max(self.beams()) > self.max_seq_length:
            yield (
                f"`start_n_top` and `end_n_top` must not be above `max_seq_length` "
                f"({self.max_seq_length})"
            )

    @rule
    def _threshold_is_for_v2(self) -> Iterator[str]:
        if self.null_score_diff_threshold == "auto" and not self.version_2_with_negative:
            yield (
                "`null_score_diff_threshold: auto` needs `version_2_with_negative: true`: without "
                "it every question has an answer"
            )

    @rule
    def _stride_fits(self) -> Iterator[str]:
        if self.doc_stride >= self.max_seq_length:
            yield (
                f"`doc_stride` ({self.doc_stride}) must be below `max_seq_length` "
                f"({self.max_seq_length})"
            )


class _TextSpec(TaskParametersModel):
    """A task whose rows are texts."""

    text_column: Text | None = Field(
        None, description="Your column with the text; the same as `dataset.columns.text`."
    )

    def named_columns(self) -> dict[str, str]:
        return {} if self.text_column is None else {"text": self.text_column}


class CausalLMSpec(_TextSpec):
    """Predict each token from those before it."""

    type: Literal["causal-lm"] = "causal-lm"
    block_size: int | None = Field(
        None,
        ge=2,
        le=MOST_TOKENS,
        description="Tokens of a training example; default: the smaller of 1024 and the model's "
        "limit.",
    )
    separate_documents: bool = Field(
        default=False,
        description="No attention across the border of two rows in a block; positions restart at "
        "0.",
    )
    packing: Packing = Field(
        "off",
        description="bfd: whole rows fill blocks of `block_size` tokens, by best-fit decreasing. "
        "None sees another, and no token is lost: longer rows are continued in further blocks.",
    )
    keep_linebreaks: bool = Field(
        default=True, description="In plain text files a line's end is part of the text."
    )

    max_new_tokens: int | None = Field(
        None,
        ge=1,
        le=100_000,
        description="`mode: predict`: tokens that are generated for a row, at most. Default: the "
        f"smaller of {NEW_TOKENS} and half of what the model takes.",
    )
    num_beams: int | None = Field(
        None,
        ge=1,
        le=64,
        description="`mode: predict`: of beam search; default: that of the model's config.",
    )
    generation: GenerationSpec = Field(
        default_factory=GenerationSpec, description="`mode: predict`: how texts are generated."
    )

    def keeps_line_ends(self) -> bool:
        return self.keep_linebreaks

    def predicting_variant(self) -> str:
        return "causal-lm/text-generation"


class MaskedLMSpec(_TextSpec):
    """Restore tokens that were masked."""

    type: Literal["masked-lm"] = "masked-lm"
    mlm_probability: float = Field(
        0.15,
        gt=0,
        lt=1,
        description="Share of tokens to predict: 80 % masked, 10 % random, 10 % left as they are.",
    )
    whole_word_mask: bool = Field(
        default=False, description="All tokens of a word, or none of them."
    )
    line_by_line: bool = Field(
        default=False, description="Each row is an example; otherwise rows are joined and cut."
    )
    max_seq_length: int | None = Field(
        None,
        ge=8,
        le=MOST_TOKENS,
        description="Tokens of an example; default: the smaller of 1024 and the model's limit.",
    )
    top_k: int = Field(
        5, ge=1, le=1000, description="`mode: predict`: candidates for each mask of a row."
    )

    def predicting_variant(self) -> str:
        return "masked-lm/fill-mask"


ProblemType = Literal["single_label_classification", "multi_label_classification", "regression"]


def _distinct(names: list[str]) -> list[str]:
    repeated = sorted(name for name, count in Counter(names).items() if count > 1)
    if repeated:
        raise ValueError(f"must name each label once; repeated: {', '.join(map(repr, repeated))}")
    return names


LabelFormat = Literal["vector", "indices", "names"]
LabelNames = Annotated[list[Name], Field(min_length=2, max_length=1000), AfterValidator(_distinct)]


class TextClassificationSpec(TaskParametersModel):
    """One label, several labels or a number for a text or a pair of texts."""

    type: Literal["text-classification"] = "text-classification"
    problem_type: ProblemType | None = Field(
        None,
        description="Default: what the training labels are: lists, several labels; numbers with a "
        "fraction, regression; else one label.",
    )
    label_names: LabelNames | None = Field(
        None,
        description="The labels in the order of the model's outputs; whole numbers in the data "
        "are places in it. Default: the training rows' labels, sorted.",
    )
    label_format: LabelFormat | None = Field(
        None,
        description="vector: a list with an entry for each label, 1 or true where the text has "
        "it, else 0 or false; indices: places in `label_names`; names: whole numbers are names, "
        "too. Default: what all rows together can only be; refused where lists can be both.",
    )
    label_columns: LabelNames | None = Field(
        None,
        description="Your columns of several labels, one for each label, with 1 or true where the "
        "text has it, else 0 or false. They are the `label_names` if those are not given.",
    )
    max_seq_length: int | None = Field(
        None,
        ge=4,
        le=MOST_TOKENS,
        description="Tokens with specials; longer texts are cut. Default: the smaller of 128 and "
        "the model's limit.",
    )

    def names(self) -> list[str] | None:
        """Of the labels, as far as the spec gives them."""
        return self.label_columns if self.label_names is None else self.label_names

    def has_vectors(self) -> bool:
        return self.label_format == "vector" or self.label_columns is not None

    def known_problem(self) -> ProblemType | None:
        """`problem_type`, or what vectors imply."""
        return "multi_label_classification" if self.has_vectors() else self.problem_type

    @rule
    def _labels_fit_the_problem(self) -> Iterator[str]:
        option = "label_columns" if self.label_columns is not None else "label_format: vector"
        several = self.problem_type in (None, "multi_label_classification")
        if self.has_vectors() and not several:
            yield f"`{option}` gives several labels, but `problem_type` is `{self.problem_type}`"
        elif self.label_format is not None and self.problem_type == "regression":
            yield "`label_format` is about labels, and `problem_type: regression` has none"

    @rule
    def _columns_are_vectors(self) -> Iterator[str]:
        if self.label_columns is None:
            return
        if self.label_format not in (None, "vector"):
            yield f"`label_columns` are a vector, but `label_format` is `{self.label_format}`"
        if self.label_names is not None and len(self.label_names) != len(self.label_columns):
            yield (
                f"`label_names` must name each of the {len(self.label_columns)} `label_columns`, "
                f"but has {len(self.label_names)} names"
            )


class TokenClassificationSpec(TaskParametersModel):
    """A tag for each word, for example of named entities."""

    type: Literal["token-classification"] = "token-classification"
    label_names: LabelNames | None = Field(
        None,
        description="The tags in the order of the model's outputs; whole numbers in the data are "
        "places in it. Default: the training rows' tags, sorted.",
    )
    label_all_tokens: bool = Field(
        default=False,
        description="Train on every token of a word, those behind the first with I- for B-; "
        "else on its first only. Evaluation always uses the first token.",
    )
    max_seq_length: int | None = Field(
        None,
        ge=4,
        le=MOST_TOKENS,
        description="Tokens with specials; words beyond are neither trained on nor evaluated. "
        "Default: the smaller of 512 and the model's limit.",
    )


# Each task is one class here, one file in worker/tasks and one entry in its registry.
TaskParameters = (
    QuestionAnsweringSpec
    | CausalLMSpec
    | MaskedLMSpec
    | TextClassificationSpec
    | TokenClassificationSpec
    | SummarizationSpec
    | TranslationSpec
    | ChatSpec
    | PreferenceSpec
    | RewardSpec
)
_ByType = Annotated[TaskParameters, Field(discriminator="type")]
_TaskType = Literal[
    "question-answering",
    "causal-lm",
    "masked-lm",
    "text-classification",
    "token-classification",
    "summarization",
    "translation",
    "chat",
    "preference",
    "reward",
]
TaskSpec = Annotated[
    _ByType,
    BeforeValidator(
        lambda value: {"type": value} if isinstance(value, str) else value,
        json_schema_input_type=_ByType | _TaskType,
    ),
]
"""`task: question-answering` means that task with its defaults."""
