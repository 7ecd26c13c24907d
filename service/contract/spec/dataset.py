"""`dataset` of a spec: where the rows come from, and which of them are used."""

from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import ConfigDict, Discriminator, Field, StringConstraints, Tag

from service.contract.fields import patterns
from service.contract.fields.bounds import MOST_ROWS
from service.contract.fields.section import SpecModel
from service.contract.fields.types import FileIds, HubRepoId, Paths, Text

DataFormat = Literal["auto", "json", "jsonl", "csv", "parquet", "text", "squad"]


MOST_SETS: Final = 20
T = TypeVar("T")
SetName = Annotated[str, StringConstraints(pattern=patterns.SET_NAME)]


# One validation set, or several with names that the user chooses.
OneOrNamed = Annotated[
    Annotated[T, Tag("[one]")]
    | Annotated[dict[SetName, T], Field(min_length=1, max_length=MOST_SETS), Tag("[named]")],
    Discriminator(lambda value: "[named]" if isinstance(value, dict) else "[one]"),
]
_NAMED: Final = "Or several as {name: …}, evaluated each: `eval_<name>_<metric>`."


MAX_BAD_FRACTION: Final = 0.05


class _Dataset(SpecModel):
    columns: dict[Text, Text] = Field(
        default_factory=dict,
        max_length=32,
        description='The task\'s column → yours, for example {"context": "passage"}.',
    )
    max_train_samples: int | None = Field(
        None, ge=1, le=MOST_ROWS, description="Use only the first rows, at most this many."
    )
    validation_split_percentage: int | None = Field(
        None,
        ge=1,
        le=99,
        description="Share of the training rows to validate with when `validation` is not given; "
        "which ones follows from the seed (`data_seed`, else `seed`).",
    )
    on_bad_row: Literal["fail", "skip"] = Field(
        "fail",
        description="`fail` ends the job and names the rows that cannot be used; `skip` leaves "
        "them out and counts them in `data_report.json`.",
    )
    max_bad_fraction: float = Field(
        MAX_BAD_FRACTION,
        ge=0,
        le=1,
        description="`on_bad_row: skip`: share of a split's rows that may be left out; the job "
        "fails above it.",
    )
    max_eval_samples: int | None = Field(None, ge=1, le=MOST_ROWS)
    max_predict_samples: int | None = Field(None, ge=1, le=MOST_ROWS)


class HubDataset(_Dataset):
    source: Literal["hub"] = Field(examples=["hub"])
    name: HubRepoId = Field(examples=["rajpurkar/squad"])
    config: Text | None = None
    revision: Text | None = Field(None, description="Branch, tag or commit; resolved to a commit.")
    train: Text = Field("train", description="Split, may be a slice such as `train[:10%]`.")
    validation: OneOrNamed[Text] | None = Field(None, description=_NAMED)
    test: Text | None = None


def _train_is_for_trainings(schema: dict[str, Any]) -> None:
    """Only training requires it; see `modes.without_training_rows`."""
    schema["required"] = [name for name in schema["required"] if name != "train"]


class UploadDataset(_Dataset):
    model_config = ConfigDict(json_schema_extra=_train_is_for_trainings)

    source: Literal["upload"] = Field(examples=["upload"])
    format: DataFormat = Field("auto", description="`auto` decides by the name and the content.")
    train: FileIds | None = Field(
        examples=[["file-0199a0b1c2d3e4f5a6b7c8d9"]],
        description="Ids from POST /v1/files. Required to train.",
    )
    validation: OneOrNamed[FileIds] | None = Field(None, description=_NAMED)
    test: FileIds | None = None


class PathDataset(_Dataset):
    model_config = ConfigDict(json_schema_extra=_train_is_for_trainings)

    source: Literal["path"] = Field(examples=["path"])
    format: DataFormat = Field("auto", description="`auto` decides by the name and the content.")
    train: Paths | None = Field(
        examples=[["/srv/data/train.jsonl"]],
        description="Absolute paths under the operator's FINETUNE_DATA_ROOTS. Required to train.",
    )
    validation: OneOrNamed[Paths] | None = Field(None, description=_NAMED)
    test: Paths | None = None


DatasetSpec = Annotated[HubDataset | UploadDataset | PathDataset, Field(discriminator="source")]
