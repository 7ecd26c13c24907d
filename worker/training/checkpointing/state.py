"""The whole state of a training: captured at one step, written to disk, restored bit for bit.

Files: `model.safetensors`, without the weights of a frozen base model; `optimizer.pt`,
`scheduler.pt`, `scaler.pt` (fp16 only) and `rng_<rank>.pt`, all read with `weights_only=True`;
`progress.json`. `worker.storage.atomic_dir` makes the directory appear whole or not at all. The
first process writes all files.
"""

import copy
import errno
import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch
from accelerate import Accelerator
from safetensors.torch import save_file

from service.contract.failures import FailureCode, StageError
from worker.storage import atomic_dir
from worker.training.checkpointing import weights
from worker.training.checkpointing.host_buffers import HostBuffers
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.strategy import Strategy
from worker.training.fast_paths import FastPaths
from worker.training.optim.lr_schedulers import Schedule
from worker.training.optim.skipped_steps import SkippedSteps
from worker.training.plan import Plan
from worker.training.progress import LossTally, TrainingProgress
from worker.training.reporting.log_history import LogHistory
from worker.training.reporting.value_tally import ValueTally
from worker.training.reproducibility import fingerprint, rng

ADAPTER_WEIGHTS: Final = "adapter_model.safetensors"
_REST: Final = 20
"""One part in so many of a checkpoint is not tensors, at most."""


@dataclass
class State:
    """Everything that changes while training."""

    accelerator: Accelerator
    strategy: Strategy
    plan: Plan
    scheduler: Schedule
    progress: TrainingProgress
    tally: LossTally
    values: ValueTally = field(default_factory=ValueTally)
    ranks: Ranks = field(default_factory=Ranks)
    history: LogHistory = field(default_factory=LogHistory)
    fast_paths: FastPaths = field(default_factory=FastPaths)
    base: str | None = None
    """Identifies frozen base weights, which checkpoints leave out; None if all weights train."""
    skipped: SkippedSteps | None = None
    """Only with loss scaling: which optimizer steps it has skipped."""
    export: Callable[[Any], dict[str, torch.Tensor]] = lambda _model: {}
    """An adapter's weights as peft loads them, for ADAPTER_WEIGHTS in each checkpoint."""

    @property
    def model(self) -> Any:
        return self.strategy.model

    @property
    def bare_model(self) -> Any:
        return self.strategy.bare_model

    @property
    def optimizer(self) -> Any:
        return self.strategy.optimizer

    def _common(self) -> dict[str, Any]:
        """Parts that are the same in all processes."""
        parts: dict[str, Any] = {"scheduler": self.scheduler}
        if self.accelerator.scaler is not None:
            parts["scaler"] = self.accelerator.scaler
        return parts


class Snapshot(NamedTuple):
    """The contents of a checkpoint's files."""

    weights: dict[str, torch.Tensor]
    trained_only: bool
    exported: dict[str, torch.Tensor]
    pickled: dict[str, Any]
    """File name → content, in the order in which the files are written."""
    progress: dict[str, Any]


def snapshot(state: State) -> Snapshot | None:
    """The state for the first process, None for the others; all processes must call it.

    Its tensors are the training's own unless the strategy `states_are_copies`; all else is a copy.
    """
    state.scheduler.settle()  # it may still have to set the optimizer's learning rates
    random_states = state.ranks.all_gather(rng.capture())
    losses, values = state.tally.totals(), state.values.totals()
    pickled: dict[str, Any] = {"optimizer.pt": state.strategy.optimizer_state()}
    with state.strategy.full_model() as model:
        if not state.ranks.is_main_process:
            return None
        for name, part in state._common().items():
            pickled[f"{name}.pt"] = copy.deepcopy(part.state_dict())
        for rank, random_state in enumerate(random_states):
            pickled[_rng_name(rank)] = random_state
        trained_only = state.base is not None
        return Snapshot(
            weights=weights.tensors(model, trained_only=trained_only),
            trained_only=trained_only,
            exported=state.export(model),
            pickled=pickled,
            progress={
                "progress": state.progress.state_dict(),
                "log_history": list(state.history.entries),
                "loss_since_log": losses,
                "values_since_log": values,
                "data": _cursor(state.plan, state.progress.step),
                "base": state.base,
                "precision": state.plan.spec.precision,
                "machine": fingerprint.facts(state.accelerator.device),
                "fast_paths": copy.deepcopy(state.fast_paths.chosen),
            },
        )


def write(taken: Snapshot, folder: Path) -> None:
    """Write `folder`, replacing what an unfinished writer left there.

    Works in any thread: it uses neither the training nor other processes. Raises
    StageError(disk_full), and leaves every older checkpoint intact.
    """
    what = f"the checkpoint of step {folder.name} was written; the earlier ones are intact"
    tensors = HostBuffers().missing_bytes([taken.pickled, taken.weights, taken.exported])
    with (
        disk_full_explained(what, tensors + tensors // _REST),
        atomic_dir.writing(folder) as partial,
    ):
        for name, value in taken.pickled.items():
            # Through Python's own file: torch's writer hides the errno of a full disk.
            with (partial / name).open("wb") as stream:
                torch.save(value, stream)
        file = partial / "model.safetensors"
        weights.save(taken.weights, file, trained_only=taken.trained_only)
        if taken.exported:
            save_file(taken.exported, partial / ADAPTER_WEIGHTS, metadata={"format": "pt"})
        (partial / "progress.json").write_text(json.dumps(taken.progress, indent=1))


def read_progress(folder: Path) -> dict[str, Any]:
    """The `progress` of the snapshot in `folder`. StageError(checkpoint_unreadable)."""
    with _unreadable_explained(folder):
        _require_intact(folder, only="progress.json")
        saved: dict[str, Any] = json.loads((folder / "progress.json").read_bytes())
        return saved


def restore(state: State, plan: Plan, folder: Path, *, same_length: bool = True) -> None:
    """Restore the state in `folder`, which follows `plan` from then on, in micro-batches of the
    size that was in use.

    `same_length`: the training in `folder` must have as many steps as `plan`.
    StageError(checkpoint_unreadable) for any doubt.
    """
    with _unreadable_explained(folder):
        _require_intact(folder)
        saved = json.loads((folder / "progress.json").read_bytes())
        state.progress.load_state_dict(saved["progress"])
        state.history.entries = saved["log_history"]
        if state.progress.batch_size is not None:
            plan = plan.with_batches_of(state.progress.batch_size)
        cursor = _cursor(plan, state.progress.step)
        if not same_length:
            cursor["total_steps"] = saved["data"]["total_steps"]
        if saved["data"] != cursor:
            raise ValueError(f"its data cursor is {saved['data']}, this job expects {cursor}")
        state.plan = plan
        if saved["base"] != state.base:
            raise ValueError("the base model's weights have changed since")
        _load_weights(state, folder)
        # Each process takes its own part: mapped, all of them share the same pages of the file.
        optimizer = _read_torch(folder / "optimizer.pt", mmap=state.ranks.world_size > 1)
        state.strategy.load_optimizer_state(optimizer)
        for name, part in state._common().items():
            part.load_state_dict(_read_torch(folder / f"{name}.pt"))
        losses = saved["loss_since_log"]
        device, values = state.accelerator.device, saved["values_since_log"]
        state.tally = LossTally(device, losses, state.ranks)
        state.values = ValueTally(state.values.names, device, values, state.ranks)
        # Last: nothing after it may draw random numbers.
        rng.restore(_read_torch(folder / _rng_name(state.ranks.rank)))


def restore_weights(state: State, folder: Path) -> None:
    """Only the model, for `load_best_model_at_end`. StageError(checkpoint_unreadable)."""
    with _unreadable_explained(folder):
        _require_intact(folder)
        _load_weights(state, folder)


def _load_weights(state: State, folder: Path) -> None:
    file, trained_only = folder / "model.safetensors", state.base is not None
    state.strategy.load_weights(
        lambda model: weights.load(model, file, trained_only=trained_only),
        trained_only=trained_only,
    )


def _cursor(plan: Plan, step: int) -> dict[str, int]:
    """The position of the next batch, and the numbers that it depends on."""
    epoch, batch = plan.cursor(step)
    return {
        "epoch": epoch,
        "batch": batch,
        "batches_per_epoch": plan.batches_per_epoch,
        "total_steps": plan.total_steps,
        "processes": plan.processes,
    }


def _rng_name(rank: int) -> str:
    return f"rng_{rank}.pt"


def _read_torch(path: Path, *, mmap: bool = False) -> Any:
    # To the CPU: random states belong there, and optimizers move their state themselves.
    return torch.load(path, map_location="cpu", weights_only=True, mmap=mmap)


def _require_intact(folder: Path, *, only: str | None = None) -> None:
    reason = atomic_dir.why_unusable(folder, only=only)
    if reason is not None:
        raise ValueError(reason)


@contextmanager
def _unreadable_explained(folder: Path) -> Iterator[None]:
    try:
        yield
    # Damaged files make the libraries raise errors of many types.
    except Exception as error:
        raise StageError(
            FailureCode.CHECKPOINT_UNREADABLE,
            f"the checkpoint of step {folder.name} cannot be restored: {error}",
            checkpoint=folder.name,
        ) from error


@contextmanager
def disk_full_explained(what: str, needed: int = 0) -> Iterator[None]:
    """Turn every error that means a full disk into StageError(disk_full), "the disk was full while
    `what`". `needed`: about how many bytes that takes, if known."""
    try:
        yield
    except Exception as error:
        number = _disk_errno(error)
        if number is None:
            raise
        message = f"the disk was full while {what}"
        details: dict[str, Any] = {"bytes_needed": needed} if needed else {}
        if number == errno.EFBIG:  # what was free, unless the operator has set a limit
            details["file_limit"] = True
        raise StageError(FailureCode.DISK_FULL, message, **details) from error


def _disk_errno(error: BaseException | None) -> int | None:
    """Looks at the causes, too: torch raises a RuntimeError after the OSError."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in {errno.ENOSPC, errno.EDQUOT, errno.EFBIG}:
            return error.errno
        if "os error 28" in str(error):  # safetensors' Rust side
            return errno.ENOSPC
        error = error.__cause__ or error.__context__
    return None
