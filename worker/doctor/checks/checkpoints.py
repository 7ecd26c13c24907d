"""Checks that background and foreground checkpoints are equal and that a resume is exact."""

import json
import os
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from service.contract.events import CheckpointSaved, StageEvent
from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import Jobs
from worker.processes.child import Child
from worker.storage.atomic_dir import MANIFEST, file_sha256

_STEPS: Final = 6
_KILLED_AT: Final = 2
_OPTIONS: Final[dict[str, Any]] = {
    "save_strategy": "steps",
    "save_steps": 2,
    "max_steps": _STEPS,
    # Without it two runs on a GPU give different numbers.
    "full_determinism": True,
}
_TIME_ENDINGS: Final = ("seconds", "_second", "wall_time")
"""How the keys end, in a checkpoint's JSON files, whose values are durations, speeds or times."""
_REMEDY = "Set `training.async_save: false` in jobs on this machine, and send this report."
_RESUME_REMEDY = (
    "On this machine an interrupted job does not end with the same model as an uninterrupted one. "
    "Try `training.full_determinism: true`, and send this report."
)


def background(context: Context) -> Finding:
    """A checkpoint written while the training continues equals one for which the training waits."""
    jobs = Jobs.of(context)
    body = jobs.body("text-classification")  # with dropout: random states count
    background, foreground = (
        jobs.train(body, async_save=async_save, **_OPTIONS) for async_save in (True, False)
    )
    for ended in (background, foreground):
        if not ended.finished:
            return failed("a job with checkpoints failed", reason=ended.ending, remedy=_REMEDY)
    different = _different_files(background.checkpoints, foreground.checkpoints)
    if different:
        summary = "checkpoints that are written in the background differ"
        return failed(summary, reason=f"different content: {', '.join(different)}", remedy=_REMEDY)
    count = len(background.checkpoints)
    return ok(f"{count} checkpoints are equal, written in the background or not", checkpoints=count)


def resumed(context: Context) -> Finding:
    """A training that is killed after a checkpoint and resumed ends with the very same weights."""
    jobs = Jobs.of(context)
    return _killed_and_resumed(jobs, jobs.gpus[:1], jobs.gpus[:1])


def devices(context: Context) -> Finding:
    """As `resumed`, with all GPUs visible before the kill and only one after it."""
    jobs = Jobs.of(context)
    return _killed_and_resumed(jobs, jobs.gpus, jobs.gpus[:1])


def _killed_and_resumed(jobs: Jobs, before: Sequence[str], after: Sequence[str]) -> Finding:
    """`before`, `after`: the GPUs visible to the stage before and after the kill."""
    body = jobs.body("text-classification")
    whole = jobs.train(body, gpus=before, **_OPTIONS)
    killed = jobs.train(body, gpus=before, on_event=_kill, **_OPTIONS)
    if not whole.finished or _KILLED_AT not in killed.checkpoints:
        ended = killed if whole.finished else whole
        return failed("a job with checkpoints failed", reason=ended.ending, remedy=_RESUME_REMEDY)
    folder = killed.checkpoints[_KILLED_AT]
    again = jobs.train(body, resume_from=folder, gpus=after, **_OPTIONS)
    if not again.finished:
        return failed("the resume failed", reason=again.ending, remedy=_RESUME_REMEDY)
    if again.result.weights_sha256 != whole.result.weights_sha256:
        reason = f"losses {again.losses}, uninterrupted {whole.losses[_KILLED_AT:]}"
        summary = "a resumed training ends with different weights"
        return failed(summary, reason=reason, remedy=_RESUME_REMEDY)
    return ok(
        f"killed after step {_KILLED_AT} of {_STEPS} and resumed: the same weights",
        weights_sha256=whole.result.weights_sha256,
    )


def _kill(child: Child, event: StageEvent) -> None:
    if isinstance(event, CheckpointSaved) and event.step == _KILLED_AT:
        os.kill(child.pid, signal.SIGKILL)


def _different_files(some: dict[int, Path], others: dict[int, Path]) -> list[str]:
    """`<step>/<file>` of each file whose content differs."""
    here, there = (_contents(folders) for folders in (some, others))
    return sorted(name for name in here | there if here.get(name) != there.get(name))


def _contents(folders: dict[int, Path]) -> dict[str, str]:
    return {
        f"{step}/{file.relative_to(folder)}": _content(file)
        for step, folder in folders.items()
        for file in folder.rglob("*")
        if file.is_file() and file.name != MANIFEST
    }


def _content(file: Path) -> str:
    if file.suffix != ".json":
        return file_sha256(file)
    return json.dumps(_without_times(json.loads(file.read_text())), sort_keys=True)


def _without_times(value: Any) -> Any:
    """`value` without times, which differ between any two runs."""
    if isinstance(value, dict):
        kept = {key: each for key, each in value.items() if not key.endswith(_TIME_ENDINGS)}
        return {key: _without_times(each) for key, each in kept.items()}
    if isinstance(value, list):
        return [_without_times(each) for each in value]
    return value
