"""JobSpec: all that a client may say about a job. Unknown fields are refused everywhere."""

from typing import Annotated, Any, Final, Literal

from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    StringConstraints,
    model_validator,
)

from service.contract.training import TrainingSpec

SPEC_VERSION: Final = 1


class _Spec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


def _no_nul(value: str) -> str:
    if "\x00" in value:
        raise ValueError("must not contain a NUL character")
    return value


Text = Annotated[str, StringConstraints(min_length=1, max_length=4096), AfterValidator(_no_nul)]
Name = Annotated[
    str,
    StringConstraints(min_length=1, max_length=200, pattern=r"^[^\x00-\x1f\x7f]+$"),
]
# What the Hub accepts as `namespace/name`.
HubRepoId = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}(/[A-Za-z0-9][A-Za-z0-9._-]{0,95})?$",
        max_length=193,
    ),
]
HubTarget = Annotated[
    str,
    StringConstraints(
        pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]{0,95}/[A-Za-z0-9][A-Za-z0-9._-]{0,95}$", max_length=193
    ),
]
FileId = Annotated[str, StringConstraints(pattern=r"^file-[A-Za-z0-9]{1,64}$")]


def _as_list(value: Any) -> Any:
    return [value] if isinstance(value, str) else value


FileIds = Annotated[list[FileId], Field(min_length=1, max_length=1000), BeforeValidator(_as_list)]
Paths = Annotated[list[Text], Field(min_length=1, max_length=1000), BeforeValidator(_as_list)]


# ---- task -------------------------------------------------------------------------------------


class QuestionAnsweringSpec(_Spec):
    """Extractive question answering as SQuAD defines it, v1.1 and v2.0."""

    type: Literal["question-answering"] = "question-answering"
    version_2_with_negative: bool = Field(
        False, description="Some questions have no answer (SQuAD v2)."
    )
    max_seq_length: int = Field(384, ge=8, description="Tokens of question, context and specials.")
    doc_stride: int = Field(128, ge=1, description="Tokens that two windows of a context share.")
    n_best_size: int = Field(20, ge=1, le=1000)
    max_answer_length: int = Field(30, ge=1, description="Tokens of the longest answer considered.")
    null_score_diff_threshold: float = Field(
        0.0,
        allow_inf_nan=False,
        description="v2: no answer when the null score beats the best span by more than this.",
    )

    @model_validator(mode="after")
    def _stride_fits(self) -> "QuestionAnsweringSpec":
        if self.doc_stride >= self.max_seq_length:
            raise ValueError(
                f"`doc_stride` ({self.doc_stride}) must be below `max_seq_length` "
                f"({self.max_seq_length})"
            )
        return self


# Each task is one class here, one file in worker/tasks and one entry in its registry. A second
# member turns this into Annotated[A | B, Field(discriminator="type")].
TaskParameters = QuestionAnsweringSpec


def _expand_task(value: Any) -> Any:
    """`task: question-answering` means that task with its defaults."""
    return {"type": value} if isinstance(value, str) else value


TaskSpec = Annotated[TaskParameters, BeforeValidator(_expand_task)]


# ---- model ------------------------------------------------------------------------------------


class ModelSpec(_Spec):
    name_or_path: Text = Field(
        examples=["distilbert/distilbert-base-uncased"],
        description="Hub id, or an absolute path under the operator's FINETUNE_MODEL_ROOTS.",
    )
    revision: Text | None = Field(None, description="Branch, tag or commit; resolved to a commit.")
    tokenizer_name: Text | None = Field(None, description="Default: that of the model.")
    config_name: Text | None = Field(None, description="Default: that of the model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "float32", description="Of the loaded weights; `auto` is what the checkpoint says."
    )


# ---- data -------------------------------------------------------------------------------------

DataFormat = Literal["auto", "json", "jsonl", "csv", "parquet", "text", "squad"]


class _Dataset(_Spec):
    columns: dict[Text, Text] = Field(
        default_factory=dict,
        max_length=32,
        description='The task\'s column → yours, for example {"context": "passage"}.',
    )
    max_train_samples: int | None = Field(
        None, ge=1, description="Use only the first so many rows."
    )
    max_eval_samples: int | None = Field(None, ge=1)
    max_predict_samples: int | None = Field(None, ge=1)


class HubDataset(_Dataset):
    source: Literal["hub"] = Field(examples=["hub"])
    name: HubRepoId = Field(examples=["rajpurkar/squad"])
    config: Text | None = None
    revision: Text | None = Field(None, description="Branch, tag or commit; resolved to a commit.")
    train: Text = Field("train", description="Split, may be a slice such as `train[:10%]`.")
    validation: Text | None = None
    test: Text | None = None


class UploadDataset(_Dataset):
    source: Literal["upload"] = Field(examples=["upload"])
    format: DataFormat = Field("auto", description="`auto` looks at the name and the content.")
    train: FileIds = Field(
        examples=[["file-0199a0b1c2d3e4f5a6b7c8d9"]], description="Ids from POST /v1/files."
    )
    validation: FileIds | None = None
    test: FileIds | None = None


class PathDataset(_Dataset):
    source: Literal["path"] = Field(examples=["path"])
    format: DataFormat = Field("auto", description="`auto` looks at the name and the content.")
    train: Paths = Field(
        examples=[["/srv/data/train.jsonl"]],
        description="Absolute paths under the operator's FINETUNE_DATA_ROOTS.",
    )
    validation: Paths | None = None
    test: Paths | None = None


DatasetSpec = Annotated[HubDataset | UploadDataset | PathDataset, Field(discriminator="source")]


# ---- the rest ---------------------------------------------------------------------------------


class ResourcesSpec(_Spec):
    gpus: int | None = Field(
        None,
        ge=0,
        le=1,
        description="0: train on the CPU; 1: wait for a GPU; null: what the worker has.",
    )


class TrackingSpec(_Spec):
    experiment_name: Name = "finetune"
    run_name: Name | None = Field(None, description="Default: the job's name, or its id.")
    tags: dict[Name, Annotated[str, StringConstraints(max_length=5000)]] = Field(
        default_factory=dict, max_length=50
    )
    log_model: bool = Field(True, description="Log the finished model as an MLflow artifact.")


class HubSpec(_Spec):
    """Push the finished model. Leave the section out to keep it here."""

    model_id: HubTarget = Field(examples=["my-team/squad-distilbert"])
    private: bool = Field(True, description="Of a repository that the push creates.")
    revision: Text = Field("main", description="Branch to commit to; created if it is missing.")
    commit_message: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    license: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]{1,64}$")] | None = Field(
        None, description="Licence id for the model card."
    )


MetadataKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00]*$")]


class JobSpec(_Spec):
    name: Name | None = None
    # The examples are valid: the API puts them in place of what is missing or wrong, so that the
    # rules behind a faulty field are checked as well.
    task: TaskSpec = Field(examples=["question-answering"])
    model: ModelSpec = Field(examples=[{"name_or_path": "distilbert/distilbert-base-uncased"}])
    dataset: DatasetSpec = Field(examples=[{"source": "hub", "name": "rajpurkar/squad"}])
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    tracking: TrackingSpec = Field(default_factory=TrackingSpec)
    hub: HubSpec | None = None
    priority: int = Field(5, ge=0, le=9, description="0 is first.")
    timeout_seconds: int | None = Field(
        None, ge=1, le=366 * 86400, description="Running time of all stages together."
    )
    max_retries: int = Field(3, ge=0, le=100, description="After failures that a retry can mend.")
    metadata: dict[MetadataKey, MetadataValue] = Field(default_factory=dict, max_length=16)

    @model_validator(mode="after")
    def _sections_agree(self) -> "JobSpec":
        problems = []
        if self.training.eval_strategy != "no" and self.dataset.validation is None:
            problems.append(
                f"`training.eval_strategy` is `{self.training.eval_strategy}` but "
                "`dataset.validation` is not given"
            )
        if self.training.use_cpu and self.resources.gpus:
            problems.append("`training.use_cpu` contradicts `resources.gpus`: give one of them")
        if problems:
            raise ValueError("; ".join(problems))
        return self
