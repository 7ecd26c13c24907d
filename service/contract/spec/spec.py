"""JobSpec: everything that a client may set for a job. Unknown fields are refused everywhere."""

from collections.abc import Callable, Iterator
from typing import Annotated, Any, Final, Self

from pydantic import Field, StringConstraints, model_validator

from service.contract.fields import patterns
from service.contract.fields.section import Acceptance, Rule, SpecModel
from service.contract.fields.types import Name
from service.contract.spec import compatibility, modes
from service.contract.spec.dataset import DatasetSpec
from service.contract.spec.hub import HubSpec
from service.contract.spec.model import ModelSpec
from service.contract.spec.modes import Mode
from service.contract.spec.peft import PeftSpec
from service.contract.spec.resources import ResourcesSpec
from service.contract.spec.secrets import SecretsSpec
from service.contract.spec.tracking import TrackingSpec
from service.contract.spec.training import TrainingSpec
from service.contract.states import Stage
from service.contract.tasks.parameters import TaskSpec
from service.contract.webhooks import MOST_OF_JOB, JobWebhook

SPEC_VERSION: Final = 1

Seconds = Annotated[int, Field(ge=1, le=366 * 86400)]


class StageTimeouts(SpecModel):
    """Running time of one stage, over all its attempts, in seconds."""

    prepare: Seconds | None = None
    train: Seconds | None = None
    publish: Seconds | None = None

    def for_stage(self, stage: Stage) -> int | None:
        limit: int | None = getattr(self, stage)
        return limit


MetadataKey = Annotated[str, StringConstraints(pattern=patterns.METADATA_KEY)]
MetadataValue = Annotated[str, StringConstraints(max_length=512, pattern=patterns.NO_NUL)]


class JobSpec(SpecModel):
    name: Name | None = None
    mode: Mode = Field(
        "train",
        description="`train`: train a model; `evaluate`: score one as it is, on "
        "`dataset.validation` and "
        "`dataset.test`; `predict`: write its predictions for `dataset.test`, which needs no "
        "labels.",
    )
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
    secrets: SecretsSpec | None = Field(
        None, description="Secrets of the project that the job is given, by name."
    )
    webhooks: list[JobWebhook] = Field(
        default_factory=list,
        max_length=MOST_OF_JOB,
        description="Receivers of this job's events, besides the project's webhooks.",
    )
    priority: int = Field(5, ge=0, le=9, description="0 is first.")
    timeout_seconds: Seconds | None = Field(
        None, description="Running time of all stages together."
    )
    stage_timeout_seconds: StageTimeouts = Field(default_factory=StageTimeouts)
    max_retries: int = Field(
        3, ge=0, le=100, description="Retries after failures that a retry can fix."
    )
    metadata: dict[MetadataKey, MetadataValue] = Field(default_factory=dict, max_length=16)

    @model_validator(mode="before")
    @classmethod
    def _train_may_be_left_out(cls, given: Any) -> Any:
        return modes.without_training_rows(given)

    @classmethod
    def accepted(cls, stored: dict[str, Any]) -> Self:
        """The spec of a job that exists, without the rules and the bounds of later releases."""
        return cls.model_validate(stored, context=Acceptance())

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        return RULES

    @property
    def trains(self) -> bool:
        return self.mode == "train"

    @property
    def hub_token_secret(self) -> str | None:
        """The secret with the job's own Hub token."""
        return None if self.secrets is None else self.secrets.hub_token

    @property
    def base_job(self) -> str | None:
        """The job whose training it continues, else the one whose model it begins with."""
        resumed = self.training.resume_from
        return resumed.job if resumed is not None else self.model.job

    def variant(self) -> str:
        """The worker's task that runs it."""
        return self.task.variant() if self.mode != "predict" else self.task.predicting_variant()

    @property
    def columns(self) -> dict[str, str]:
        """The task's column → the user's, from `dataset.columns` or from the task."""
        return {**self.dataset.columns, **self.task.named_columns()}


RULES: Final[tuple[Callable[[JobSpec], Iterator[str]], ...]] = (
    lambda job: compatibility.mode_has_its_rows(job.mode, job.dataset),
    lambda job: compatibility.only_trainings_push(job.mode, job.hub),
    lambda job: compatibility.always_pushed_while_training(job.hub),
    lambda job: compatibility.only_trainings_register(job.mode, job.tracking),
    lambda job: compatibility.only_trainings_have_steps(job.mode, job.tracking),
    lambda job: compatibility.only_trainings_resume(job.mode, job.training),
    lambda job: compatibility.only_trainings_make_adapters(job.mode, job.peft),
    lambda job: compatibility.only_trainings_start_from_scratch(job.mode, job.model),
    lambda job: compatibility.evaluations_have_rows(job.mode, job.training, job.dataset),
    lambda job: compatibility.validation_rows_have_one_source(job.dataset),
    lambda job: compatibility.only_skipping_has_a_limit(job.dataset),
    lambda job: compatibility.best_model_has_one_metric(job.mode, job.training, job.dataset),
    lambda job: compatibility.best_metric_is_reported(
        job.mode, job.training, job.dataset, job.task
    ),
    lambda job: compatibility.columns_have_one_name(job.task, job.dataset),
    lambda job: compatibility.label_columns_replace_the_label(job.task, job.dataset),
    lambda job: compatibility.beam_search_is_of_xlnet(job.task, job.model),
    lambda job: compatibility.smoothed_labels_exist(job.mode, job.training, job.task),
    lambda job: compatibility.references_are_untrained(job.mode, job.task),
    lambda job: compatibility.threshold_has_one_validation_set(job.mode, job.task, job.dataset),
    lambda job: compatibility.cpu_or_gpus(job.training, job.resources),
    lambda job: compatibility.gpu_options_have_a_gpu(job.mode, job.training, job.resources),
    lambda job: compatibility.adapters_need_trained_weights(job.peft, job.model),
    lambda job: compatibility.prompts_fit_the_task(job.peft, job.task),
    lambda job: compatibility.prompts_need_padding(job.peft, job.training),
    lambda job: compatibility.prompts_reach_every_document(job.peft, job.task),
    lambda job: compatibility.prefixes_need_the_cache(job.peft, job.training),
    lambda job: compatibility.quantized_weights_keep_their_dtype(job.peft, job.training),
    lambda job: compatibility.four_bits_need_a_gpu(job.peft, job.training, job.resources),
    lambda job: compatibility.shards_have_their_optimizers(job.resources, job.training),
    lambda job: compatibility.shards_scale_no_loss(job.resources, job.training),
    lambda job: compatibility.shards_compile_nothing(job.resources, job.training),
    lambda job: compatibility.shards_keep_their_dtype(job.resources, job.training),
    lambda job: compatibility.deepspeed_needs_float32(job.resources, job.model),
    lambda job: compatibility.shards_are_not_quantized(job.resources, job.peft),
    lambda job: compatibility.fsdp_offloads_from_gpus(job.resources, job.training),
    lambda job: compatibility.batches_shrink_in_one_process(job.mode, job.training, job.resources),
)
"""The rules between sections, in the order in which they are reported."""
