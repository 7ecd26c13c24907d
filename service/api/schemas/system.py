"""Tasks, workers and health."""

from datetime import datetime
from typing import Any, Literal

from pydantic import BaseModel, Field

from service.contract.states import Stage


class TaskColumn(BaseModel):
    name: str
    required: bool
    description: str


class TaskInfo(BaseModel):
    type: str
    title: str
    columns: list[TaskColumn]
    metrics: list[str] = Field(description="Each may be `metric_for_best_model`.")
    greater_is_better: dict[str, bool | None] = Field(
        description="Metric → whether a greater value is better; null: neither is, so that "
        "`metric_for_best_model` needs `greater_is_better`."
    )
    parameters_schema: dict[str, Any] = Field(description="JSON schema of `task`.")
    defaults: dict[str, Any] = Field(description="Of the parameters of the task.")


class TaskList(BaseModel):
    data: list[TaskInfo]
    training_schema: dict[str, Any] = Field(description="JSON schema of `training`.")
    training_defaults: dict[str, Any]


class WorkerJob(BaseModel):
    id: str
    name: str | None
    stage: Stage


class DoctorFinding(BaseModel):
    name: str
    status: Literal["ok", "warning", "failed", "not_run"]
    summary: str
    reason: str = ""
    remedy: str = ""


class WorkerDoctor(BaseModel):
    status: Literal["ok", "warning", "failed", "not_run"] = Field(
        description="The worst of the findings; `not_run` if the checks themselves failed."
    )
    checked_at: datetime
    findings: list[DoctorFinding] = Field(description="The results of `finetune doctor --quick`.")


class Worker(BaseModel):
    id: str
    hostname: str
    pid: int
    queues: list[str]
    devices: list[dict[str, Any]] = Field(
        description="The devices that it computes on. A GPU: `type` (`cuda`), `index`, `uuid`, "
        "`name`, "
        "`memory_bytes`, `compute_capability`, `driver_version`, and `mig` (one instance of a GPU "
        "in MIG mode). A CPU: `type` (`cpu`), `name`, `cores`. Either may have a `problem`: why "
        "the "
        "GPU is not used, or why there is no GPU."
    )
    slots: int = Field(description="How many stages it runs at once.")
    packages: list[str] | None = Field(
        None,
        description="Which of the packages that not every worker has are installed here: "
        "`bitsandbytes`, `deepspeed`, `torchao`; null for a worker that does not report them.",
        examples=[["bitsandbytes"]],
    )
    version: str
    started_at: datetime
    last_seen_at: datetime
    jobs: list[WorkerJob] = Field(description="The jobs that it runs now.")
    doctor: WorkerDoctor | None = Field(
        None,
        description="The quick checks of its machine, run in the background at its start; null "
        "until they have finished, or where FINETUNE_DOCTOR_AT_START is off.",
    )


class WorkerList(BaseModel):
    data: list[Worker]


class Live(BaseModel):
    status: Literal["live"] = "live"


class Ready(BaseModel):
    status: Literal["ready"] = "ready"
    parts: dict[str, str] = Field(examples=[{"database": "ok", "broker": "ok"}])
