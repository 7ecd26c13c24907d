"""Runs the checks one after another, each in its own process."""

import importlib.util
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from pydantic import ValidationError

from worker.devices.gpus import gpus
from worker.doctor import jobs, processes
from worker.doctor.check import (
    GPU,
    LINUX,
    TWO_GPUS,
    Check,
    Context,
    Finding,
    TorchView,
    failed,
    not_run,
)
from worker.doctor.run_check import CONTEXT, FINDING
from worker.doctor.warm import Warm

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
    torch: TorchView = field(default_factory=TorchView)
    lines: list[Line] = field(default_factory=list)
    interrupted: bool = False


@dataclass(frozen=True)
class Doctor:
    """`scratch` is an empty folder that the caller removes."""

    checks: Sequence[Check]
    scratch: Path
    quick: bool = False
    in_background: bool = False
    package: str = "worker.doctor.checks"
    """Where the checks' files are."""

    def examine(self, report: Callable[[Line], None]) -> Examination:
        """Call `report` for each line as soon as it is known. After KeyboardInterrupt the remaining
        checks are `not_run`."""
        done = Examination()
        try:
            context = self._context()
            done.torch = context.torch
            with Warm(jobs.libraries(context.device), _OFFLINE) as warm:
                for check in self.checks:
                    done.lines.append(self._line(check, context, warm))
                    report(done.lines[-1])
        except KeyboardInterrupt:
            done.interrupted = True
        for check in self.checks[len(done.lines) :]:
            finding = not_run("not run", reason="the doctor was interrupted")
            done.lines.append(Line(check, finding))
            report(done.lines[-1])
        return done

    @property
    def _time_factor(self) -> float:
        """Longer limits in the background, where jobs have priority and no user waits."""
        return 10.0 if self.in_background else 1.0

    def _context(self) -> Context:
        file = self.scratch / "torch.json"
        done = processes.run(
            "worker.doctor.torch_view",
            [str(file)],
            seconds=self._time_factor * _TORCH_SECONDS,
            environment=_OFFLINE,
            folder=self.scratch,
        )
        try:
            view = TorchView.model_validate_json(file.read_bytes())
        except (OSError, ValidationError):
            ending = "did not finish in time" if done.status is None else f"ended ({done.status})"
            view = TorchView(reason=f"the process that queries torch {ending}: {done.tail}")
        return Context(
            scratch=self.scratch,
            quick=self.quick,
            in_background=self.in_background,
            gpus=[dict(gpu) for gpu in gpus()],
            torch=view,
        )

    def _line(self, check: Check, context: Context, warm: Warm) -> Line:
        lacking = lacks(check, context)
        if lacking is not None:
            return Line(check, lacking)
        started = time.monotonic()
        finding = self._run(check, context, warm)
        return Line(check, finding, round(time.monotonic() - started, 2))

    def _run(self, check: Check, context: Context, warm: Warm) -> Finding:
        folder = self.scratch / check.name
        scratch = folder / "scratch"
        scratch.mkdir(parents=True)
        given = context.model_copy(update={"scratch": scratch})
        (folder / CONTEXT).write_text(given.model_dump_json(), encoding="utf-8")
        arguments = [f"{self.package}.{check.run}", str(folder)]
        limit = self._time_factor * check.seconds
        try:
            done = None
            if check.forks:
                done = warm.run(arguments, seconds=limit, folder=scratch)
            done = done or processes.run(
                "worker.doctor.run_check",
                arguments,
                seconds=limit,
                environment=_OFFLINE,
                folder=scratch,
            )
            return _finding(limit, folder / FINDING, done)
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def _finding(limit: float, file: Path, done: processes.Done) -> Finding:
    """The finding that the check wrote, even if its process failed later; else how it ended."""
    if file.is_file():
        return Finding.model_validate_json(file.read_bytes())
    if done.status is None:
        return failed(
            f"did not end within {limit:g} s and was killed",
            reason=done.tail or "it had no output",
            remedy="Run it again with nothing else running; if it hangs again, update the driver "
            "and send this report.",
        )
    ending = f"status {done.status}" if done.status >= 0 else f"signal {-done.status}"
    return failed(f"the check's process ended with {ending}", reason=done.tail, remedy=_REPORT_IT)


def lacks(check: Check, context: Context) -> Finding | None:
    """`not_run` with the reason, if the machine lacks something that the check needs."""
    if context.in_background and check.on_device and context.device == "cuda":
        reason = "it computes on the GPU, which a job may be using: run `finetune doctor`"
        return not_run("not run", reason=reason)
    for need in check.needs:
        reason, remedy = _NEEDS.get(need, _package)(need, context)
        if reason:
            return not_run("not run", reason=reason, remedy=remedy)
    return None


def _gpu(_: str, context: Context) -> tuple[str, str]:
    if context.torch.available:
        return "", ""
    if context.gpus:
        return "torch cannot use this machine's GPU: see the check `torch`", ""
    return "this machine has no NVIDIA GPU", ""


def _two_gpus(need: str, context: Context) -> tuple[str, str]:
    reason, remedy = _gpu(need, context)
    if not reason and len(context.torch.devices) < 2:
        reason = "only one GPU is visible here"
    return reason, remedy


def _linux(_: str, __: Context) -> tuple[str, str]:
    return ("" if sys.platform == "linux" else "only on Linux"), ""


def _package(need: str, _: Context) -> tuple[str, str]:
    if importlib.util.find_spec(need) is not None:
        return "", ""
    return f"the package {need} is not installed", f"If you want to use it: `pip install {need}`."


_NEEDS: Final[dict[str, Callable[[str, Context], tuple[str, str]]]] = {
    GPU: _gpu,
    TWO_GPUS: _two_gpus,
    LINUX: _linux,
}
