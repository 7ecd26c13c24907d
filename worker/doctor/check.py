"""The definition of a check, its input (`Context`) and its result (`Finding`)."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

Status = Literal["ok", "warning", "failed", "not_run"]

GPU: Final = "gpu"
IDLE_GPU: Final = "idle-gpu"
"""It computes on a GPU if there is one. A starting worker skips such checks, because a job may be
using the GPU."""
TORCH: Final = "torch"
LINUX: Final = "linux"


@dataclass(frozen=True)
class Check:
    """A line of the table. The code is imported only to run it: listing checks imports no torch."""

    name: str
    """The name for `--only`: lower case, words joined by hyphens."""
    title: str
    run: str
    """`file:function` in worker/doctor/checks; called as `function(context)`, gives a Finding, in a
    process of its own."""
    seconds: float
    """The time limit: then its processes are killed and the check has failed."""
    quick: bool = False
    """Whether `--quick` includes it: all quick checks together take less than a minute."""
    thorough: bool = False
    """Whether only `--thorough` includes it."""
    trains: bool = False
    """Whether it runs stages: it is called as `function(context, jobs)` in the doctor's process."""
    needs: tuple[str, ...] = ()
    """GPU, IDLE_GPU, TORCH, LINUX, or names of packages to import; what is missing makes it
    `not_run`."""


class Finding(BaseModel):
    """The result of a check. Unless it is `ok`, it explains why and what to do."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Status
    summary: str = Field(description="One line of the table.")
    reason: str = ""
    remedy: str = ""
    data: dict[str, JsonValue] = Field(default_factory=dict, description="What was measured.")


def ok(summary: str, **data: Any) -> Finding:
    return Finding(status="ok", summary=summary, data=data)


def warning(summary: str, *, reason: str, remedy: str, **data: Any) -> Finding:
    """It works, but slower or with fewer features than possible."""
    return Finding(status="warning", summary=summary, reason=reason, remedy=remedy, data=data)


def failed(summary: str, *, reason: str, remedy: str, **data: Any) -> Finding:
    return Finding(status="failed", summary=summary, reason=reason, remedy=remedy, data=data)


def not_run(*, reason: str, remedy: str = "") -> Finding:
    return Finding(status="not_run", summary="not run", reason=reason, remedy=remedy)


class TorchView(BaseModel):
    """What torch reports about CUDA, determined once in a separate process (`torch_view.py`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str | None = Field(None, description="None: torch cannot be imported.")
    cuda_build: str | None = Field(None, description="The CUDA that torch was built with.")
    available: bool = False
    reason: str = Field("", description="Why CUDA is not available, in torch's own words.")
    devices: list[dict[str, JsonValue]] = Field(
        default_factory=list,
        description='[{"index", "name", "uuid", "capability": [9, 0], "memory_bytes"}]',
    )
    architectures: list[str] = Field(
        default_factory=list, description="For which it has kernels: `sm_90`, `compute_120`."
    )


class Context(BaseModel):
    """The input of a check, `name`. `scratch` is an empty folder for it, removed afterwards."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scratch: Path
    name: str = ""
    in_background: bool = Field(default=False, description="A worker runs it at its start.")
    gpus: list[dict[str, Any]] = Field(
        default_factory=list, description="As `worker.devices.gpus.gpus()` lists them."
    )
    torch: TorchView = Field(default_factory=TorchView)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where a check computes: on the GPU if torch can use one."""
        return "cuda" if self.torch.available else "cpu"
