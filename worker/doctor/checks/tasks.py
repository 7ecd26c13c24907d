"""Trains a tiny job of every task, from its data to the finished model."""

import json
import math
import re
import warnings
from collections import Counter
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from service.contract.stages import StageRequest
from worker.doctor import tiny
from worker.doctor.check import Context, Finding, failed, ok, warning
from worker.doctor.jobs import Ended, Jobs, replace

_OPTIONS: Final[dict[str, Any]] = {
    "max_steps": 8,
    "learning_rate": 5e-3,
    "eval_strategy": "steps",
    "eval_steps": 4,
}
_TOLERANCE = 2e-3
"""Relative difference of the first loss on a GPU and on the CPU, both in float32."""
_SYNC = re.compile("synchronizing CUDA operation")
_PLACES = 3
_SYNCS = "syncs.json"


def tasks(context: Context) -> Finding:
    """Losses must fall; on a GPU the first must equal the CPU's, and steps must not wait for it."""
    jobs = Jobs.of(context)
    losses: dict[str, JsonValue] = {}
    syncs: dict[str, JsonValue] = {}
    for task in tiny.TASKS:
        body = jobs.body(task, dropout=0.0)
        ended = jobs.train(body, prelude=_prelude(context), **_OPTIONS)
        problem = _problem(ended)
        if problem is None and context.device == "cuda":
            problem = _differs(ended, jobs.train(body, resources={"gpus": 0}, **_OPTIONS))
            syncs[task] = _syncs(ended)
        if problem is not None:
            return failed(
                f"a tiny job of {task} failed", reason=problem, remedy=_REMEDY, losses=losses
            )
        losses[task] = [ended.losses[0], ended.losses[-1]]
    if any(syncs.values()):
        return warning(
            "every task trains, but steps wait for the device",
            reason=f"waits per step: {json.dumps(syncs)}",
            remedy="Results are correct, but training is slower. Please send this report.",
            losses=losses,
            syncs=syncs,
        )
    return ok(f"all {len(losses)} tasks train, evaluate and save", losses=losses, syncs=syncs)


_REMEDY = (
    "Run `make test` on this machine with the versions of constraints.txt; if it passes, send "
    "this report."
)


def _problem(ended: Ended) -> str | None:
    if not ended.finished:
        return ended.ending
    losses = ended.losses
    if not all(map(math.isfinite, losses)):
        return f"a loss is not finite: {losses}"
    if not min(losses[1:]) < losses[0]:
        return f"the loss does not fall: {losses}"
    return None


def _differs(ended: Ended, on_cpu: Ended) -> str | None:
    if not on_cpu.finished:
        return f"on the CPU: {on_cpu.ending}"
    here, there = ended.losses[0], on_cpu.losses[0]
    if math.isclose(here, there, rel_tol=_TOLERANCE):
        return None
    return f"the first step's loss is {here} on the GPU and {there} on the CPU"


# ---- in the stage's process -------------------------------------------------------------------


def _prelude(context: Context) -> Any:
    return _count_syncs if context.device == "cuda" else None


def _count_syncs(request: StageRequest) -> None:
    """Record where optimizer steps after the first make the host wait for the device."""
    import torch

    from worker.training import loop
    from worker.training.run import TrainingRun

    plain, places = loop.train_step, Counter[str]()

    def recording(run: TrainingRun, micro_batches: Any) -> Any:
        if run.state.progress.step == 0:
            return plain(run, micro_batches)
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            torch.cuda.set_sync_debug_mode("warn")
            try:
                return plain(run, micro_batches)
            finally:
                torch.cuda.set_sync_debug_mode("default")
                found = [each for each in caught if _SYNC.search(str(each.message))]
                places.update(f"{Path(each.filename).name}:{each.lineno}" for each in found)
                (request.attempt_dir / _SYNCS).write_text(json.dumps(places))

    replace(loop, "train_step", recording)


def _syncs(ended: Ended) -> dict[str, JsonValue]:
    """Code location → waits per step, the most frequent first."""
    file = ended.request.attempt_dir / _SYNCS
    counted = Counter(json.loads(file.read_text())) if file.exists() else Counter[str]()
    steps = len(ended.losses) - 1
    return {place: round(count / steps, 2) for place, count in counted.most_common(_PLACES)}
