"""The untrained model's log-probabilities of the data, computed once and kept for later jobs. If an
attempt is killed meanwhile, the next one continues from what it had computed (`reference_blocks`).

The values depend on the model and the prepared data only, not on the loss, so a retry, a resumed
training and a job with other options read them. The key also has what changes their rounding:
a resumed training must continue with the same bits.
"""

import sys
from collections.abc import Callable, Mapping
from functools import partial
from importlib.metadata import version
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from service.contract.spec.resources import DDPSpec
from service.contract.stage import prepared_data
from service.contract.stage.events import Notice, ReferenceSaved, StageEvent
from service.contract.stage.stages import StageRequest
from worker.stages.reference.blocks import Blocks
from worker.storage import content_cache
from worker.training import build, compile_choice
from worker.training.checkpointing import weights
from worker.training.checkpointing.state import State
from worker.training.evaluation.evaluator import Evaluator
from worker.training.kernels import cpu_attention_choice
from worker.training.kernels.equivalence_check import CHECK
from worker.training.objective import Objective
from worker.training.reproducibility import fingerprint

Values = dict[str, npt.NDArray[np.float32]]
"""Split → (features, …)."""


def provide(
    request: StageRequest,
    objective: Objective,
    evaluator: Evaluator,
    state: State,
    send: Callable[[StageEvent], None],
) -> None:
    """Give the objective its reference values. The model must not be trained yet, and all processes
    must call this: they share the work."""
    root, ranks = request.project_cache / prepared_data.REFERENCE, state.ranks
    key = _key(request, state)
    values = ranks.broadcast(_read(root, key) if ranks.is_main_process else None)
    blocks = Blocks.for_key(root, key, ranks, lambda count: send(ReferenceSaved(features=count)))
    if values is not None:
        message = "Reusing the reference's log-probabilities of an earlier job or attempt"
        send(Notice(message=message, data={"fingerprint": key}))
        blocks.remove()
    else:
        values = _computed(objective, evaluator, blocks, send)
        if ranks.is_main_process and _write(root, key, values):
            blocks.remove()
    for split, each in values.items():
        objective.use_reference(split, each)


def _computed(
    objective: Objective,
    evaluator: Evaluator,
    blocks: Blocks,
    send: Callable[[StageEvent], None],
) -> Values:
    if blocks.count:
        message = (
            "Continuing the reference's log-probabilities: those of "
            f"{blocks.count:,} examples are already computed"
        )
        send(Notice(message=message, data={"features": blocks.count}))

    def reference_values(split: str) -> Callable[[], npt.NDArray[np.float32]]:
        return partial(objective.reference_values, split, blocks.forward(split, evaluator))

    return {split: evaluator.run(reference_values(split)) for split in objective.reference_splits}


def _read(root: Path, key: str) -> Values | None:
    try:
        entry = content_cache.find(root, key)
    except OSError as error:  # the disk is full: the first entry's lock cannot be created
        sys.stderr.write(f"Cannot look for the reference's log-probabilities: {error}\n")
        return None
    if entry is None:
        return None
    return {split: np.load(_file(entry.folder, split)) for split in entry.splits}


def _write(root: Path, key: str, values: Values) -> bool:
    """Write the values to the cache; False if the disk is full."""

    def save(folder: Path) -> content_cache.Counts:
        for split, each in values.items():
            np.save(_file(folder, split), each)
        return {split: {"features": len(each)} for split, each in values.items()}

    try:
        content_cache.get_or_build(root, key, save)
    except OSError as error:  # a full disk: the next attempt has the blocks
        sys.stderr.write(f"Cannot save the reference's log-probabilities: {error}\n")
        return False
    return True


def _file(folder: Path, split: str) -> Path:
    return folder / f"{split}.npy"


def _key(request: StageRequest, state: State) -> str:
    assert request.prepared is not None
    spec = request.spec
    config, strategy = _dumped(spec.model.config), spec.resources.chosen_strategy
    return content_cache.address(
        {
            "versions": {name: version(name) for name in ("torch", "transformers")},
            "data": request.prepared.data_fingerprint,
            "model": weights.identity(request.prepared.model_dir),
            "dtype": spec.model.dtype,
            "quantization": _dumped(getattr(spec.peft, "quantization", None)),
            "from_scratch": config and {"config": config, "seed": spec.training.seed},
            "precision": spec.training.precision,
            "padding_free": [spec.training.padding_free, build.may_be_padding_free(spec), CHECK],
            "compiled": spec.training.compiles,
            "tf32": spec.training.tf32,
            "batch_size": spec.training.eval_batch_size,
            # DDP's options change no number; the others may gather weights in half precision.
            "strategy": None if isinstance(strategy, DDPSpec) else _dumped(strategy),
            "fast_paths": _fast_paths(state),
            "device": fingerprint.facts(state.accelerator.device),
        }
    )


def _fast_paths(state: State) -> dict[str, Any]:
    """`compile_choice` compiles only what is in training mode, and a new training has not made that
    choice yet. Unmeasured kernels are those of earlier releases, whose keys must stay the same."""
    chosen = dict(state.fast_paths.chosen)
    chosen.pop(compile_choice.PATH, None)
    if chosen.get(cpu_attention_choice.PATH) == cpu_attention_choice.UNMEASURED:
        del chosen[cpu_attention_choice.PATH]
    return chosen


def _dumped(section: Any) -> Mapping[str, Any] | None:
    return None if section is None else section.model_dump(mode="json")
