"""What `finetune try` sends to `worker.inference`, one JSON document on a line of its own, and what
comes back."""

from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field

from service.contract.failures import Failure

ROWS_FILE: Final = "rows.jsonl"
"""The name that messages have for the rows of one request: `rows.jsonl, line 2` is its second."""


class _Frozen(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, ser_json_inf_nan="constants")


class BaseModelSource(_Frozen):
    """Where the base model of an adapter is."""

    name_or_path: str = Field(description="Hub id, or an absolute path.")
    revision: str | None = Field(description="Commit hash; None for a folder.")
    is_prepared: bool = Field(
        default=False,
        description="The path is a folder that `prepare` has made and checked, with links to the "
        "weights.",
    )


class InferenceRequest(_Frozen):
    """The first line."""

    spec: dict[str, Any] = Field(description="Of the job that trained the model.")
    model_dir: Path = Field(description="The finished model.")
    base_model: BaseModelSource | None = Field(description="If the finished model is an adapter.")
    folder: Path = Field(description="For temporary files; removed by the sender.")
    cache_dir: Path = Field(description="For downloads from the Hub.")
    use_gpu: bool


class Rows(_Frozen):
    """Each further line: rows with the columns of the task, without labels."""

    rows: list[dict[str, Any]]


class Answers(_Frozen):
    """The line that answers `Rows`."""

    answers: list[dict[str, Any]] = Field(default=[], description="One for each row, in order.")
    notices: list[str] = Field(default=[], description="For example of texts that were cut.")
    failure: Failure | None = None
