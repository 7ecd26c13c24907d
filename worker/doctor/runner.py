"""Runs the checks one after another: each in its own process, or with stages of its own."""

import importlib.util
import os
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from traceback import format_exc
from typing import Final

from worker.devices.gpus import gpus
from worker.doctor import isolated
from worker.doctor.check import (
    GPU,
    IDLE_GPU,
    LINUX,
    TORCH,
    Check,
    Context,
    Finding,
    TorchView,
    failed,
    not_run,
)
from worker.doctor.jobs import Jobs, StageFailedError

_TORCH_SECONDS: Final = 120.0
# No check needs the network, and none may wait for it.
_OFFLINE: Final = {"HF_HUB_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
_REPORT_IT: Final = (
    "Please send this report: this is a fault of the service or of a package, not of the machine."
)


@dataclass(frozen=True)
class Line:
    """A check with its finding; `seconds` is how long it took."""

    check: Check
    finding: Finding
    seconds: float = 0.0


@dataclass
class Examination:
    """`scratch` is an empty folder that the caller removes; `run` sets the last three."""

    checks: Sequence[Check]
    scratch: Path
    in_background: bool = False
    package: str = "worker.doctor.checks"
    """Where the checks' files are."""
    torch: TorchView = field(default_factory=TorchView)
    lines: list[Line] = field(default_factory=list)
    interrupted: bool = False

    def run(self, report: Callable[[Line], None]) -> None:
        """Call `report` for each line as soon as it is known. After KeyboardInterrupt the remaining
        checks are `not_run`."""
        os.environ |= _OFFLINE
        try:
            context = self._context()
            self.torch = context.torch
            with Jobs(self._folder("jobs"), context) as jobs:
                for check in self.checks:
                    self.lines.append(self._line(check, context, jobs))
                    report(self.lines[-1])
        except KeyboardInterrupt:
            self.interrupted = True
        for check in self.checks[len(self.lines) :]:
            self.lines.append(Line(check, not_run(reason="the doctor was interrupted")))
            report(self.lines[-1])

    def _limit(self, seconds: float) -> float:
        """Longer in the background, where jobs have priority and no user waits."""
        return 10 * seconds if self.in_background else seconds

    def _folder(self, name: str) -> Path:
        scratch = self.scratch / name / "scratch"
        scratch.mkdir(parents=True)
        return scratch

    def _context(self) -> Context:
        context = Context(
            scratch=self._folder("torch-view"), in_background=self.in_background, gpus=gpus()
        )
        query, limit = "worker.doctor.torch_view:query", self._limit(_TORCH_SECONDS)
        done = isolated.run(query, context, seconds=limit)
        ending = isolated.ending(done.status)
        if done.result is None:
            view = TorchView(reason=f"the process that queries torch {ending}: {done.tail}")
        else:
            view = TorchView.model_validate_json(done.result)
        return context.model_copy(update={"torch": view})

    def _line(self, check: Check, context: Context, jobs: Jobs) -> Line:
        lacking = lacks(check, context)
        if lacking is not None:
            return Line(check, lacking)
        started, limit = time.monotonic(), self._limit(check.seconds)
        reference = f"{self.package}.{check.run}"
        own = context.model_copy(update={"name": check.name})
        if check.trains:
            jobs.deadline = started + limit
            finding = _train(reference, own, jobs)
        else:
            finding = self._isolate(reference, own, limit)
        return Line(check, finding, round(time.monotonic() - started, 2))

    def _isolate(self, reference: str, context: Context, limit: float) -> Finding:
        scratch = self._folder(context.name)
        context = context.model_copy(update={"scratch": scratch})
        try:
            done = isolated.run(reference, context, seconds=limit)
        finally:
            shutil.rmtree(scratch.parent, ignore_errors=True)
        if done.result is not None:
            return Finding.model_validate_json(done.result)
        if done.status is None:
            return failed(
                f"did not end within {limit:g} s and was killed",
                reason=done.tail or "it had no output",
                remedy="Run it again with nothing else running; if it hangs again, update the "
                "driver and send this report.",
            )
        summary = f"the check's process {isolated.ending(done.status)}"
        return failed(summary, reason=done.tail, remedy=_REPORT_IT)


def _train(reference: str, context: Context, jobs: Jobs) -> Finding:
    try:
        finding: Finding = isolated.function_of(reference)(context, jobs)
    except StageFailedError as error:
        remedy = "See the checks above this one; if all are ok, please send this report."
        return failed("a tiny job failed", reason=str(error), remedy=remedy)
    except Exception:
        return failed("the check failed", reason=format_exc(), remedy=_REPORT_IT)
    return finding


def lacks(check: Check, context: Context) -> Finding | None:
    """`not_run` with the reason, if the machine lacks something that the check needs."""
    for need in check.needs:
        reason = _missing(need, context)
        if reason:
            is_package = need not in (GPU, IDLE_GPU, TORCH, LINUX)
            remedy = f"If you want to use it: `pip install {need}`." if is_package else ""
            return not_run(reason=reason, remedy=remedy)
    return None


def _missing(need: str, context: Context) -> str:
    """Why the machine lacks `need`; empty if it has it."""
    if need == GPU:
        why = "this machine has no NVIDIA GPU"
        if context.gpus:
            why = "torch cannot use this machine's GPU: see the check `torch`"
        return "" if context.torch.available else why
    if need == IDLE_GPU:
        why = "it computes on the GPU, which a job may be using: run `finetune doctor`"
        return why if context.in_background and context.torch.available else ""
    if need == TORCH:
        return "" if context.torch.version else "torch cannot be imported: see the check `torch`"
    if need == LINUX:
        return "" if sys.platform == "linux" else "only on Linux"
    return "" if importlib.util.find_spec(need) else f"the package {need} is not installed"
