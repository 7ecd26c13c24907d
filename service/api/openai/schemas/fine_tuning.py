"""The objects of OpenAI's API, with every field that its clients know: null where there is nothing
to say. Times are Unix seconds."""

from typing import Any, Literal

from pydantic import BaseModel, Field


class JobError(BaseModel):
    code: str
    message: str = Field(description="What went wrong, and what to do about it.")
    param: str | None = Field(description="The parameter to correct, for example `training_file`.")


class Hyperparameters(BaseModel):
    n_epochs: int | None = Field(description="Null if the number of passes is not an integer.")
    batch_size: int | None = Field(description="Of each device, over all accumulated steps.")
    learning_rate_multiplier: float | None


class DpoHyperparameters(Hyperparameters):
    beta: float | None


class SupervisedMethod(BaseModel):
    hyperparameters: Hyperparameters


class DpoMethod(BaseModel):
    hyperparameters: DpoHyperparameters


class Method(BaseModel):
    type: Literal["supervised", "dpo"]
    supervised: SupervisedMethod | None
    dpo: DpoMethod | None
    reinforcement: None = Field(None, description="Not offered.")


class MlflowIntegration(BaseModel):
    project: str = Field(description="The experiment.")
    name: str | None = Field(description="Of the run; null: the job's name, or its id.")


class Integration(BaseModel):
    type: Literal["mlflow"]
    mlflow: MlflowIntegration


class FineTuningJob(BaseModel):
    id: str = Field(examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"])
    object: Literal["fine_tuning.job"] = "fine_tuning.job"
    created_at: int
    error: JobError | None
    fine_tuned_model: str | None = Field(description="Once it has succeeded.")
    finished_at: int | None
    hyperparameters: Hyperparameters
    model: str
    organization_id: str = Field(description="Id of the project that owns it.")
    result_files: list[str]
    seed: int
    status: Literal[
        "validating_files", "queued", "running", "paused", "succeeded", "failed", "cancelled"
    ]
    trained_tokens: int | None
    training_file: str = Field(
        description="The first training file; the Hub's id or the path of other data."
    )
    validation_file: str | None
    estimated_finish: int | None
    integrations: list[Integration] = Field(
        description="MLflow, if its experiment or run is named."
    )
    metadata: dict[str, str] | None
    method: Method | None = Field(description="Null for tasks that OpenAI does not have.")


class FineTuningJobPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[FineTuningJob]
    has_more: bool


class FineTuningJobEvent(BaseModel):
    id: str
    object: Literal["fine_tuning.job.event"] = "fine_tuning.job.event"
    created_at: int
    level: Literal["info", "warn", "error"]
    message: str
    type: Literal["message", "metrics"]
    data: dict[str, Any] | None = Field(description="Of `metrics`: the step and its numbers.")


class FineTuningJobEventPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[FineTuningJobEvent]
    has_more: bool


class CheckpointMetrics(BaseModel):
    step: int
    train_loss: float | None
    train_mean_token_accuracy: float | None
    valid_loss: float | None
    valid_mean_token_accuracy: float | None
    full_valid_loss: float | None
    full_valid_mean_token_accuracy: float | None


class FineTuningJobCheckpoint(BaseModel):
    id: str
    object: Literal["fine_tuning.job.checkpoint"] = "fine_tuning.job.checkpoint"
    created_at: int
    fine_tuned_model_checkpoint: str = Field(description="The name of its model.")
    fine_tuning_job_id: str
    metrics: CheckpointMetrics
    step_number: int


class FineTuningJobCheckpointPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[FineTuningJobCheckpoint]
    has_more: bool


class Model(BaseModel):
    id: str
    object: Literal["model"] = "model"
    created: int
    owned_by: str = Field(description="Name of the project that owns it.")
    shutdown_date: None = Field(None, description="A model has none.")


class ModelPage(BaseModel):
    object: Literal["list"] = "list"
    data: list[Model]


class ModelDeleted(BaseModel):
    id: str
    object: Literal["model"] = "model"
    deleted: Literal[True] = True


class ErrorDetails(BaseModel):
    message: str
    type: str
    param: str | None
    code: str | None


class OpenAIError(BaseModel):
    """What OpenAI's clients expect of an error."""

    error: ErrorDetails
