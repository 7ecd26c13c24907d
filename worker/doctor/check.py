"""What a check is: where it is listed, what it is given, and what it answers."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

from worker.doctor import processes
from worker.doctor.processes import Done

Status = Literal["ok", "warning", "failed", "not_run"]

GPU: Final = "gpu"
TWO_GPUS: Final = "two gpus"
LINUX: Final = "linux"


@dataclass(frozen=True)
class Check:
    """A line of the table, without the code behind it: listing the checks imports no torch."""

    name: str
    """What `--only` takes: lower case, words joined by hyphens."""
    title: str
    run: str
    """`file:function` in worker/doctor/checks; called as `function(context)`, gives a Finding."""
    seconds: float
    """After which its processes are killed and it counts as failed."""
    quick: bool = False
    """Whether `--quick` has it: all quick checks together take less than a minute."""
    on_device: bool = False
    """Whether it computes on a GPU where there is one. Then a worker leaves it out at its start,
    because a job may have the GPU."""
    forks: bool = False
    """It runs stages (`worker.doctor.jobs`), so its process is forked from one that has imported
    what they need; it must not start CUDA itself before them."""
    needs: tuple[str, ...] = ()
    """GPU, TWO_GPUS, LINUX, or names of packages to import; what is missing makes it `not_run`."""


class Finding(BaseModel):
    """What a check found. A line that is not `ok` says why, and what to do about it."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    status: Status
    summary: str = Field(description="One line of the table.")
    reason: str = ""
    remedy: str = ""
    data: dict[str, JsonValue] = Field(default_factory=dict, description="What was measured.")


def ok(summary: str, **data: Any) -> Finding:
    return Finding(status="ok", summary=summary, data=data)


def warning(summary: str, *, reason: str, remedy: str, **data: Any) -> Finding:
    """It works, but slower, or with less, than it could."""
    return Finding(status="warning", summary=summary, reason=reason, remedy=remedy, data=data)


def failed(summary: str, *, reason: str, remedy: str, **data: Any) -> Finding:
    return Finding(status="failed", summary=summary, reason=reason, remedy=remedy, data=data)


def not_run(summary: str, *, reason: str = "", remedy: str = "", **data: Any) -> Finding:
    return Finding(status="not_run", summary=summary, reason=reason, remedy=remedy, data=data)


class TorchView(BaseModel):
    """What torch says of CUDA, found once in a process of its own (`torch_view.py`)."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    version: str | None = Field(None, description="None: torch cannot be imported.")
    cuda_build: str | None = Field(None, description="The CUDA that torch was built with.")
    available: bool = False
    reason: str = Field("", description="In torch's words: why CUDA is not available.")
    devices: list[dict[str, JsonValue]] = Field(
        default_factory=list,
        description='[{"index", "name", "uuid", "capability": [9, 0], "memory_bytes"}]',
    )


class Context(BaseModel):
    """What a check is given. `scratch` is an empty folder of its own, removed after the check."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    scratch: Path
    quick: bool = False
    in_background: bool = Field(default=False, description="A worker runs it at its start.")
    gpus: list[dict[str, Any]] = Field(
        default_factory=list, description="As `worker.devices.gpus.gpus()` lists them."
    )
    torch: TorchView = Field(default_factory=TorchView)

    @property
    def device(self) -> Literal["cpu", "cuda"]:
        """Where a check computes: on the GPU where torch can use one."""
        return "cuda" if self.torch.available else "cpu"

    def run_module(
        self,
        module: str,
        *arguments: str,
        seconds: float,
        environment: Mapping[str, str] | None = None,
    ) -> Done:
        """Run `python -P -m <module> <arguments>` in the scratch folder, with a time limit.

        The process and all its descendants are killed at the limit, and die with this process.
        `environment` is added to this process's own.
        """
        return processes.run(
            module,
            arguments,
            seconds=seconds,
            environment=environment or {},
            folder=self.scratch,
        )


Run = Callable[[Context], Finding]
