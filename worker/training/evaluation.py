"""Runs the model over features without gradients, and leaves the training as it found it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed

from service.contract.splits import validation_name
from service.contract.training import TrainingSpec
from worker.training import masks, randomness
from worker.training.loading import Loader, chunks
from worker.training.memory import BatchInHand, out_of_memory_explained
from worker.training.objective import Batch, Collate, Evaluation, Features, Objective, Run
from worker.training.progress import EVAL_PREFIX
from worker.training.ranks import Ranks
from worker.training.sampling import lengths


class EvaluationLeftError(Exception):
    """Left in the middle, as it was asked for; the training is as it was before."""


class Evaluator:
    """`leave` says, after each batch, whether to give up at once. `together`: the first process
    cannot run the model without the others, and all of them do the same on the same batches."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        objective: Objective,
        spec: TrainingSpec,
        tick: Callable[[], None],
        ranks: Ranks,
        leave: Callable[[], bool] = lambda: False,
        *,
        together: bool = False,
    ) -> None:
        self._together = together and ranks.count > 1
        self._accelerator = accelerator
        self._model = model
        self._objective = objective
        self._spec = spec
        self._tick = tick
        self._ranks = ranks
        self._leave = leave
        self._in_hand = BatchInHand()

    def __call__(self, split: str, folder: Path) -> Evaluation | None:
        """The task's evaluation of `split`, its files under `folder`; None without such a split.
        EvaluationLeftError.

        Metrics are named as Trainer names them: `eval_loss`, of one of several validation sets
        `eval_<name>_loss`. Of several processes the first one evaluates, and all are given what it
        found: metrics are then those of one process, and all draw the same conclusions.
        """
        outcome: Evaluation | EvaluationLeftError | None = None
        if self._ranks.is_first:
            outcome = self._outcome(split, folder)
        elif self._together:
            with TemporaryDirectory() as unused:
                self._outcome(split, Path(unused))
        outcome = self._ranks.from_first(outcome)
        if isinstance(outcome, EvaluationLeftError):
            raise outcome
        return outcome

    def _outcome(self, split: str, folder: Path) -> Evaluation | EvaluationLeftError | None:
        try:
            return self._evaluate(split, folder)
        except EvaluationLeftError as left:
            return left

    def _evaluate(self, split: str, folder: Path) -> Evaluation | None:
        folder.mkdir(parents=True, exist_ok=True)
        was_training = self._model.training
        self._model.eval()
        try:
            with (
                randomness.preserved(),
                out_of_memory_explained(self._in_hand, "training.per_device_eval_batch_size"),
                self._casting_weights_once(),
            ):
                if self._together:  # whatever is drawn, all of them do the same
                    set_seed(self._spec.seed)
                result = self._objective.evaluate(split, self.forward, folder)
        finally:
            self._model.train(was_training)
        if result is None:
            return None
        named = validation_name(split)
        prefix = f"{EVAL_PREFIX}{named}_" if named else EVAL_PREFIX
        metrics = {f"{prefix}{name}": value for name, value in result.metrics.items()}
        return Evaluation(metrics, result.files, result.samples)

    def _casting_weights_once(self) -> AbstractContextManager[None]:
        """Autocast forgets the weights in half precision at the end of the outermost context: of
        each forward pass, were there none around it. They do not change in an evaluation, and a
        generated text takes many passes. No more are held than in a training step."""
        if self._together:  # shards are gathered anew, and are not to be held
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(
            self._accelerator.device.type, enabled=False
        )
        return context

    def forward(
        self, features: Features, collate: Collate, run: Run | None = None
    ) -> Iterator[tuple[list[int], Any]]:
        """Implements `objective.Forward`: batches of similar length, the longest first."""
        order = np.argsort(-lengths(features), kind="stable").tolist()
        batches = chunks(order, self._spec.per_device_eval_batch_size)
        loaded = Loader(features, collate, self._spec, keep_workers=False).over(batches)
        for indices, batch in zip(batches, loaded, strict=True):
            self._in_hand.see(batch)
            # Left before the yield: the consumer's code must not run under no_grad.
            with torch.no_grad():
                output = self._run(on_device(batch, self._accelerator), run)
            yield indices, output
            self._tick()
            if self._is_left():
                raise EvaluationLeftError

    def _is_left(self) -> bool:
        leave = self._leave()
        return self._ranks.sums(int(leave)) != [0] if self._together else leave

    def _run(self, batch: Batch, run: Run | None) -> Any:
        if run is None and self._ranks.count == 1:
            return self._model(**batch)
        # Unwrapped it has its own methods, and its forward keeps the job's precision, but calls no
        # other process.
        bare = self._accelerator.unwrap_model(self._model, keep_torch_compile=False)
        return bare(**batch) if run is None else run(bare, batch)


def on_device(batch: Batch, accelerator: Accelerator) -> Batch:
    """The batch where the model is, which must be given it next: its mask is read here."""
    masks.see(batch)
    return {name: value.to(accelerator.device, non_blocking=True) for name, value in batch.items()}
