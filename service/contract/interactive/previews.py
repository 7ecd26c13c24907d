"""A preview: what a job would make of the first rows of its data."""

from enum import StrEnum
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from service.contract.failures import Failure

DEFAULT_ROWS: Final = 100
MOST_ROWS: Final = 1000
DEFAULT_SHOWN: Final = 3
MOST_SHOWN: Final = 20
MOST_TOKENS: Final = 2048
"""Of an example, that are shown."""
MOST_CHARACTERS: Final = 4 * MOST_TOKENS
"""Of a target in words."""
MOST_BYTES: Final = 768 * 1024
"""Of a result as JSON. It travels as one event and lies in one row of the database."""
DEADLINE_SECONDS: Final = 120.0
"""After that a preview that has not ended has failed."""


class PreviewState(StrEnum):
    QUEUED = "queued"
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"
    """`failure` says why a job would fail, or why there is no preview."""


UNFINISHED: Final = frozenset({PreviewState.QUEUED, PreviewState.RUNNING})


class PreviewOptions(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    rows: int = Field(DEFAULT_ROWS, ge=1, description="Of each split, the first that are read.")
    shown: int = Field(DEFAULT_SHOWN, ge=0, le=MOST_SHOWN, description="Examples shown in full.")


class PreviewBadRow(BaseModel):
    place: str
    reason: str = Field(description="Rows are counted by it.")
    problem: str = Field(description="What is wrong with it, for a person.")


class LengthBin(BaseModel):
    """Rows with at least `from` and at most `to` tokens."""

    model_config = ConfigDict(validate_by_name=True, validate_by_alias=True)

    first: int = Field(alias="from")
    to: int
    rows: int


class PreviewLengths(BaseModel):
    """Tokens of the rows before anything is cut."""

    total: int
    min: int
    mean: float
    p50: int
    p90: int
    p95: int
    p99: int
    max: int
    histogram: list[LengthBin] = Field(
        max_length=32,
        description="Of equal width; the last one also holds the longest 1 % of the rows.",
    )


class PreviewSplit(BaseModel):
    """The rows of one split that were read. Some tasks add counts of their own."""

    model_config = ConfigDict(extra="allow")
    __pydantic_extra__: dict[str, int]

    rows_read: int
    rows_usable: int
    rows_bad: int
    bad_by_reason: dict[str, int]
    bad_rows: list[PreviewBadRow] = Field(description="The first of them.")
    is_whole: bool = Field(description="Whether these are all rows of the split.")
    rows_estimated: int | None = Field(
        None, description="Of the whole split; null where only reading it all would tell."
    )
    features: int | None = Field(
        None, description="What the model is given: rows, windows, blocks or packed rows."
    )
    tokens: PreviewLengths | None = None
    truncated: int | None = Field(None, description="Rows longer than `max_length`.")
    target_tokens: PreviewLengths | None = None
    targets_truncated: int | None = None
    windows_per_example: dict[str, int] | None = None
    labels: dict[str, int] | None = Field(
        None,
        description="Label → rows that have it, or words: the most frequent 100. null where there "
        "are none.",
    )
    trained_tokens: int | None = Field(
        None, description="Tokens of these features that count in the loss; null: labels do."
    )


class TrainedSpan(BaseModel):
    """Neighbouring tokens that count in the loss, each `end` exclusive."""

    start: int = Field(description="The first of these tokens.")
    end: int
    text_start: int = Field(description="Where they begin in `text`, in characters.")
    text_end: int


class PreviewExample(BaseModel):
    """One feature, as the model is given it."""

    split: str
    text: str = Field(description="Of all shown tokens together.")
    tokens: list[str] = Field(description=f"The text of each, up to {MOST_TOKENS:,}.")
    length: int = Field(description="In tokens, those that are not shown included.")
    trained: list[TrainedSpan] | None = Field(
        description="Of `tokens`, up to 256; null where the loss is of labels, or of tokens chosen "
        "anew in each batch: see `target`."
    )
    target: Any = Field(
        description=f"What the model learns from it, in words, up to {MOST_CHARACTERS:,} "
        "characters; or a label for each token, null where none counts."
    )


class PreviewEpoch(BaseModel):
    """One pass over the training rows, from those that were read."""

    is_exact: bool = Field(description="false: estimated from the rows that were read.")
    rows: int
    features: int
    trained_tokens: int | None
    batches: int = Field(description="Of all processes together.")
    optimizer_steps: int
    total_steps: int = Field(description="Of the whole training.")


class PreviewFindings(BaseModel):
    """What was found before a failure is part of them."""

    rows_limit: int
    splits: dict[str, PreviewSplit] = Field(default_factory=dict)
    examples: list[PreviewExample] = Field(default_factory=list, max_length=MOST_SHOWN)
    notices: list[str] = Field(default_factory=list, max_length=100)
    unknown_tokens: float | None = Field(
        None,
        description="Share of the tokens that the tokenizer has no entry for; null if its entries "
        "cover everything.",
    )
    max_length: int | None = Field(None, description="Tokens of the longest feature.")
    length_option: str | None = Field(None, description="The option of `task` that it comes from.")
    epoch: PreviewEpoch | None = Field(
        None, description="null where the number of rows is not known, or nothing is trained."
    )


class PreviewResult(PreviewFindings):
    failure: Failure | None = Field(None, description="How a job would fail.")

    def is_small(self) -> bool:
        """Whether it has at most `MOST_BYTES` as JSON."""
        return len(self.model_dump_json().encode()) <= MOST_BYTES
