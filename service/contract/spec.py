"""JobSpec: all that a client may say about a job. Unknown fields are refused everywhere."""

import re
from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal, TypeVar

from pydantic import (
    AfterValidator,
    ConfigDict,
    Discriminator,
    Field,
    JsonValue,
    StringConstraints,
    Tag,
    model_validator,
)

from service.contract import deepspeed, fsdp, modes
from service.contract import peft as peft_section
from service.contract.modes import Mode
from service.contract.parameters import TaskSpec
from service.contract.peft import PeftSpec
from service.contract.resources import ResourcesSpec
from service.contract.states import Stage
from service.contract.training import TrainingSpec
from service.contract.types import (
    CheckpointChoice,
    FileIds,
    HubRepoId,
    JobId,
    Name,
    Paths,
    SpecModel,
    Text,
)

SPEC_VERSION: Final = 1


# ---- model ------------------------------------------------------------------------------------


class ModelConfigSpec(SpecModel):
    """A model without weights: they are drawn from `training.seed`."""

    model_type: Name = Field(
        examples=["gpt2"], description="As transformers names it in a config.json."
    )
    config_overrides: dict[Name, JsonValue] = Field(
        default_factory=dict,
        max_length=100,
        description="Fields of the type's default configuration. Vocabulary and special ids are "
        "the tokenizer's unless they are here.",
    )


class ModelSpec(SpecModel):
    name_or_path: Text | None = Field(
        None,
        examples=["distilbert/distilbert-base-uncased"],
        description="Hub id, or an absolute path under the operator's FINETUNE_MODEL_ROOTS. "
        "Required unless `job` or `config` is given.",
    )
    job: JobId | None = Field(
        None,
        examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
        description="Start from the model that another job of this service has made.",
    )
    checkpoint: CheckpointChoice | None = Field(
        None,
        description="Of `job`: `best`, `last` or the step of a checkpoint. Default: the job's "
        "finished model, which is what it published.",
    )
    config: ModelConfigSpec | None = Field(
        None,
        description="Train from scratch, without the weights of any model; needs `tokenizer_name`.",
    )
    revision: Text | None = Field(None, description="Branch, tag or commit; resolved to a commit.")
    tokenizer_name: Text | None = Field(None, description="Default: that of the model.")
    config_name: Text | None = Field(None, description="Default: that of the model.")
    dtype: Literal["auto", "float32", "bfloat16", "float16"] = Field(
        "float32",
        description="Of the loaded weights; `auto` is what the checkpoint says, but float32 where "
        "it says float16 and all weights train.",
    )

    @model_validator(mode="after")
    def _has_one_origin(self) -> "ModelSpec":
        problems = list(_origin_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self

    @property
    def title(self) -> str:
        """What the model is made of, in words."""
        if self.job is not None:
            step = "" if self.checkpoint is None else f" ({self.checkpoint})"
            return f"model of {self.job}{step}"
        return self.name_or_path or f"{self.config.model_type if self.config else ''} from scratch"


def _origin_problems(spec: ModelSpec) -> Iterator[str]:
    if spec.job is None and spec.checkpoint is not None:
        yield "`checkpoint` is one of another job's: `job` is missing"
    if spec.job is not None:
        for name in ("name_or_path", "config", "revision"):
            if getattr(spec, name) is not None:
                yield f"`{name}` is not for a model that `job` has made: leave one of them out"
        return
    if spec.config is None:
        if spec.name_or_path is None:
            yield (
                "`name_or_path` is required, or `job` for the model of another job, or `config` "
                "for a model from scratch"
            )
        return
    if spec.tokenizer_name is None:
        yield "`tokenizer_name` is required: a model from scratch has no tokenizer of its own"
    for name in ("name_or_path", "revision", "config_name"):
        if getattr(spec, name) is not None:
            yield f"`{name}` is not for a model from scratch, which `config` describes"


# ---- data -------------------------------------------------------------------------------------

DataFormat = Literal["auto", "json", "jsonl", "csv", "parquet", "text", "squad"]


T = TypeVar("T")
SetName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9_-]{1,64}$")]


def _one_or_named(value: Any) -> str:
    return "[named]" if isinstance(value, dict) else "[one]"


# One validation set, or several under names of the user's.
OneOrNamed = Annotated[
    Annotated[T, Tag("[one]")]
    | Annotated[dict[SetName, T], Field(min_length=1, max_length=20), Tag("[named]")],
    Discriminator(_one_or_named),
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
        None, ge=1, description="Use only the first so many rows."
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
    max_eval_samples: int | None = Field(None, ge=1)
    max_predict_samples: int | None = Field(None, ge=1)


class HubDataset(_Dataset):
    source: Literal["hub"] = Field(examples=["hub"])
    name: HubRepoId = Field(examples=["rajpurkar/squad"])
    config: Text | None = None
    revision: Text | None = Field(None, description="Branch, tag or commit; resolved to a commit.")
    train: Text = Field("train", description="Split, may be a slice such as `train[:10%]`.")
    validation: OneOrNamed[Text] | None = Field(None, description=_NAMED)
    test: Text | None = None


def _train_is_for_trainings(schema: dict[str, Any]) -> None:
    """`modes.without_training_rows` gives it where a client need not."""
    schema["required"] = [name for name in schema["required"] if name != "train"]


class UploadDataset(_Dataset):
    model_config = ConfigDict(json_schema_extra=_train_is_for_trainings)

    source: Literal["upload"] = Field(examples=["upload"])
    format: DataFormat = Field("auto", description="`auto` looks at the name and the content.")
    train: FileIds | None = Field(
        examples=[["file-0199a0b1c2d3e4f5a6b7c8d9"]],
        description="Ids from POST /v1/files. Required to train.",
    )
    validation: OneOrNamed[FileIds] | None = Field(None, description=_NAMED)
    test: FileIds | None = None


class PathDataset(_Dataset):
    model_config = ConfigDict(json_schema_extra=_train_is_for_trainings)

    source: Literal["path"] = Field(examples=["path"])
    format: DataFormat = Field("auto", description="`auto` looks at the name and the content.")
    train: Paths | None = Field(
        examples=[["/srv/data/train.jsonl"]],
        description="Absolute paths under the operator's FINETUNE_DATA_ROOTS. Required to train.",
    )
    validation: OneOrNamed[Paths] | None = Field(None, description=_NAMED)
    test: Paths | None = None


DatasetSpec = Annotated[HubDataset | UploadDataset | PathDataset, Field(discriminator="source")]


# ---- the rest ---------------------------------------------------------------------------------


Seconds = Annotated[int, Field(ge=1, le=366 * 86400)]


def _not_reserved(alias: str) -> str:
    if re.fullmatch(r"latest|v\d+", alias, re.IGNORECASE):
        raise ValueError("MLflow keeps this alias for itself")
    return alias


RegisteredName = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$")
]
# MLflow keeps `latest` and `v<number>` for itself.
Alias = Annotated[
    str,
    StringConstraints(max_length=200, pattern=r"^[A-Za-z0-9_-]+$"),
    AfterValidator(_not_reserved),
]


class TrackingSpec(SpecModel):
    experiment_name: Name = "finetune"
    run_name: Name | None = Field(None, description="Default: the job's name, or its id.")
    tags: dict[Name, Annotated[str, StringConstraints(max_length=5000)]] = Field(
        default_factory=dict, max_length=50
    )
    log_model: bool = Field(True, description="Log the finished model as an MLflow artifact.")
    tensorboard: bool = Field(
        False,
        description="Write TensorBoard's event file of the training, as an artifact of the job "
        "and of its run: `tensorboard/events.out.tfevents.<job id>`.",
    )
    register_as: RegisteredName | None = Field(
        None,
        description="Register the finished model under this name in MLflow's model registry: one "
        "version for each job.",
        examples=["squad-distilbert"],
    )
    register_alias: Alias = Field(
        "newest", description="Alias that is moved to the version which the job registers."
    )

    @model_validator(mode="after")
    def _registers_what_is_logged(self) -> "TrackingSpec":
        if self.register_as is not None and not self.log_model:
            raise ValueError("`register_as` needs `log_model: true`")
        return self


class HubSpec(SpecModel):
    """Push the finished model. Leave the section out to keep it here."""

    model_id: HubRepoId = Field(
        examples=["my-team/squad-distilbert"],
        description="`namespace/name`; a name alone is in the namespace of the operator's token. "
        "`prepare` asks the Hub whether the token may write there, and creates the repository.",
    )
    private: bool = Field(True, description="Of a repository that the job creates.")
    revision: Text = Field("main", description="Branch to commit to; created if it is missing.")
    commit_message: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    license: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]{1,64}$")] | None = Field(
        None, description="Licence id for the model card; default: that of the base model's card."
    )
    strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = Field(
        "end",
        description="When the model is pushed: when the job ends; also at every checkpoint, while "
        "the training goes on; with the newest checkpoint beside it, as `last-checkpoint`; with "
        "each checkpoint, as `checkpoint-<step>`. A checkpoint that comes while another one is "
        "pushed waits, and gives way to a newer one.",
    )

    @property
    def pushes_while_training(self) -> bool:
        return self.strategy != "end"


class StageTimeouts(SpecModel):
    """Running time of one stage, over all its attempts, in seconds."""

    prepare: Seconds | None = None
    train: Seconds | None = None
    publish: Seconds | None = None

    def of(self, stage: Stage) -> int | None:
        limit: int | None = getattr(self, stage)
        return limit


MetadataKey = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9._-]{1,64}$")]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=r"^[^\x00]*$")]


class JobSpec(SpecModel):
    name: Name | None = None
    mode: Mode = Field(
        "train",
        description="`train` a model; `evaluate`: score one as it is, on `dataset.validation` and "
        "`dataset.test`; `predict`: write its predictions for `dataset.test`, which needs no "
        "labels.",
    )
    # The examples are valid: the API puts them in place of what is missing or wrong, so that the
    # rules behind a faulty field are checked as well.
    task: TaskSpec = Field(examples=["question-answering"])
    model: ModelSpec = Field(examples=[{"name_or_path": "distilbert/distilbert-base-uncased"}])
    dataset: DatasetSpec = Field(examples=[{"source": "hub", "name": "rajpurkar/squad"}])
    training: TrainingSpec = Field(default_factory=TrainingSpec)
    peft: PeftSpec | None = Field(
        None,
        discriminator="method",
        examples=[{"method": "lora"}],
        description="Train an adapter; left out: all weights.",
    )
    resources: ResourcesSpec = Field(default_factory=ResourcesSpec)
    tracking: TrackingSpec = Field(default_factory=TrackingSpec)
    hub: HubSpec | None = None
    priority: int = Field(5, ge=0, le=9, description="0 is first.")
    timeout_seconds: Seconds | None = Field(
        None, description="Running time of all stages together."
    )
    stage_timeout_seconds: StageTimeouts = Field(default_factory=StageTimeouts)
    max_retries: int = Field(3, ge=0, le=100, description="After failures that a retry can mend.")
    metadata: dict[MetadataKey, MetadataValue] = Field(default_factory=dict, max_length=16)

    @model_validator(mode="before")
    @classmethod
    def _train_may_be_left_out(cls, given: Any) -> Any:
        return modes.without_training_rows(given)

    @model_validator(mode="after")
    def _sections_agree(self) -> "JobSpec":
        problems = list(modes.contradictions(self))
        validates = self.dataset.validation is not None
        holds_out = self.dataset.validation_split_percentage is not None
        evaluates = self.trains and self.training.eval_strategy != "no"
        if evaluates and not (validates or holds_out):
            problems.append(
                f"`training.eval_strategy` is `{self.training.eval_strategy}` but "
                "`dataset.validation` is not given"
            )
        if validates and holds_out:
            problems.append(
                "`dataset.validation_split_percentage` is for data without `dataset.validation`: "
                "give one of them"
            )
        if self.dataset.on_bad_row == "fail" and self.dataset.max_bad_fraction != MAX_BAD_FRACTION:
            problems.append("`dataset.max_bad_fraction` needs `dataset.on_bad_row: skip`")
        if self._best_is_unclear():
            problems.append(
                "the best model is chosen by `training.metric_for_best_model`: with several sets "
                "in `dataset.validation` name a metric of one of them, such as `<name>_loss`"
            )
        problems += [
            f"`task.{column}_column` is {theirs!r} but `dataset.columns.{column}` is "
            f"{self.dataset.columns[column]!r}: give one of them"
            for column, theirs in self.task.named_columns().items()
            if self.dataset.columns.get(column, theirs) != theirs
        ]
        smooths = self.trains and self.training.label_smoothing_factor
        if smooths and self.task.type == "question-answering":
            problems.append(
                "`training.label_smoothing_factor` smooths one label each, and a "
                "`question-answering` model has two positions instead"
            )
        if self.trains and self.task.is_settled_by_validation():
            problems += self._validation_is_one()
        if self.training.use_cpu and self.resources.gpus:
            problems.append("`training.use_cpu` contradicts `resources.gpus`: give one of them")
        problems += peft_section.contradictions(self)
        problems += fsdp.contradictions(self)
        problems += deepspeed.contradictions(self)
        shrinks = self.trains and self.training.auto_find_batch_size
        if shrinks and self.resources.processes > 1:
            problems.append(
                "`training.on_oom: halve_batch` (`auto_find_batch_size`) is for one process: of "
                "several only the one whose memory ran out would know; lower "
                "`per_device_train_batch_size` instead"
            )
        if problems:
            raise ValueError("; ".join(problems))
        return self

    def _validation_is_one(self) -> Iterator[str]:
        option = "`task.null_score_diff_threshold: auto` finds the threshold on the validation set"
        if isinstance(self.dataset.validation, dict):
            yield f"{option}: give a number, or one set in `dataset.validation`"
        elif self.dataset.validation is None and self.dataset.validation_split_percentage is None:
            yield f"{option}: give `dataset.validation`"

    def _best_is_unclear(self) -> bool:
        several = self.trains and isinstance(self.dataset.validation, dict)
        training = self.training
        return several and training.chooses_by_metric and training.metric_for_best_model is None

    @property
    def trains(self) -> bool:
        return self.mode == "train"

    @property
    def base_job(self) -> str | None:
        """The job whose training it continues, else the one whose model it begins with."""
        resumed = self.training.resume_from
        return resumed.job if resumed is not None else self.model.job

    def variant(self) -> str:
        """Which of the worker's tasks does it."""
        return self.task.variant() if self.mode != "predict" else self.task.predicting_variant()

    @property
    def columns(self) -> dict[str, str]:
        """The task's column → the user's, however the spec says it."""
        return {**self.dataset.columns, **self.task.named_columns()}
