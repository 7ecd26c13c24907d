"""Runs the model over features without gradients, and leaves the training as it found it."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import datasets
import numpy as np
import pyarrow.compute
import torch
from accelerate import Accelerator

from worker.training import build, randomness
from worker.training.memory import BatchInHand, out_of_memory_explained
from worker.training.objective import Batch, Collate, Evaluation, Features, Objective, Run
from worker.training.progress import EVAL_PREFIX


class Evaluator:
    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        objective: Objective,
        batch_size: int,
        tick: Callable[[], None],
    ) -> None:
        self._accelerator = accelerator
        self._model = model
        self._objective = objective
        self._batch_size = batch_size
        self._tick = tick
        self._in_hand = BatchInHand()

    def __call__(self, split: str, folder: Path) -> Evaluation | None:
        """The task's evaluation of `split`, its files under `folder`; None without such a split.

        Metrics are named as Trainer names them: `eval_loss`, `eval_f1`.
        """
        folder.mkdir(parents=True, exist_ok=True)
        was_training = self._model.training
        self._model.eval()
        try:
            with (
                randomness.preserved(),
                out_of_memory_explained(self._in_hand, "training.per_device_eval_batch_size"),
            ):
                result = self._objective.evaluate(split, self.forward, folder)
        finally:
            self._model.train(was_training)
        if result is None:
            return None
        metrics = {f"{EVAL_PREFIX}{name}": value for name, value in result.metrics.items()}
        return Evaluation(metrics, result.files, result.samples)

    def forward(
        self, features: Features, collate: Collate, run: Run | None = None
    ) -> Iterator[tuple[list[int], Any]]:
        """Implements `objective.Forward`: batches of similar length, the longest first."""
        order = np.argsort(-_lengths(features), kind="stable").tolist()
        batches = build.chunks(order, self._batch_size)
        loaded = build.loader(features, batches, collate)
        for indices, batch in zip(batches, loaded, strict=True):
            self._in_hand.see(batch)
            # Left before the yield: the consumer's code must not run under no_grad.
            with torch.no_grad():
                output = self._run(on_device(batch, self._accelerator), run)
            yield indices, output
            self._tick()

    def _run(self, batch: Batch, run: Run | None) -> Any:
        if run is None:
            return self._model(**batch)
        # Unwrapped it has its own methods; its forward keeps the job's precision.
        return run(self._accelerator.unwrap_model(self._model), batch)


def on_device(batch: Batch, accelerator: Accelerator) -> Batch:
    return {name: value.to(accelerator.device, non_blocking=True) for name, value in batch.items()}


def _lengths(features: Features) -> "np.ndarray[Any, np.dtype[np.int64]]":
    """Tokens of each feature; from Arrow's offsets where there are some, without decoding."""
    if isinstance(features, datasets.Dataset):
        tokens = features.with_format("arrow").select_columns(["input_ids"])[:]["input_ids"]
        return np.asarray(pyarrow.compute.list_value_length(tokens), dtype=np.int64)
    return np.array([len(feature["input_ids"]) for feature in features], dtype=np.int64)
