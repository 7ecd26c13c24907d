"""The events of `prepare` that the user sees."""

from collections.abc import Callable
from pathlib import Path

from service.contract.stage.events import Notice, PhaseChanged, Progress, StageEvent
from service.contract.stage.stages import BaseJob, ResumeSource
from service.contract.states import Phase
from worker.data.sources import Data
from worker.stages import artifacts
from worker.stages.prepare.model import Origins


class Events:
    """The events that the user sees."""

    def __init__(self, send: Callable[[StageEvent], None]) -> None:
        self._send = send

    def phase(self, phase: Phase) -> None:
        self._send(PhaseChanged(phase=phase))

    def progress(self, done: int, total: int) -> None:
        """`total` is 0 while it is unknown."""
        self._send(Progress(step=done, of=total))

    def notice(self, notice: Notice) -> None:
        self._send(notice)

    def starts_from_job(self, base: BaseJob) -> None:
        what = "finished model" if base.step is None else f"checkpoint of step {base.step}"
        message = f"Starts from the {what} of {base.job}"
        self.notice(Notice(message=message, data={"base_job": base.job, "step": base.step}))

    def artifact(self, name: str, file: Path, workspace: Path) -> None:
        artifacts.announce({name: file}, workspace, self._send)

    def resumes_from(self, source: ResumeSource) -> None:
        message = f"Resumes from the checkpoint of step {source.step} of {source.job}"
        self.notice(Notice(message=message, data={"base_job": source.job, "step": source.step}))

    def resolved(self, origins: Origins, data: Data) -> None:
        known = {
            name: located.commit
            for name, located in vars(origins).items()
            if located is not None and located.commit is not None
        }
        if data.revision is not None:
            known["dataset"] = data.revision
        if known:
            text = ", ".join(f"{name} {commit[:12]}" for name, commit in known.items())
            self.notice(Notice(message=f"Resolved to commits: {text}", data=known))
