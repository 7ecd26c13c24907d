"""Runs the model over features without gradients, and leaves the training unchanged."""

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, TypeVar

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from accelerate.utils.memory import clear_device_cache
from accelerate.utils.operations import recursively_apply
from transformers.utils.generic import ModelOutput

from service.contract.failures import FailureCode, StageError
from service.contract.spec.splits import metric_prefix
from service.contract.spec.training import TrainingSpec
from worker.training.batches.dataloader import Loader, chunks
from worker.training.batches.samplers import lengths
from worker.training.distributed.ranks import Ranks
from worker.training.kernels import attention_masks, padding_free
from worker.training.memory.usage import CurrentBatch, out_of_memory_explained
from worker.training.objective import (
    Batch,
    Collate,
    Evaluation,
    Features,
    Objective,
    Run,
    shape_of,
)
from worker.training.reproducibility import rng

T = TypeVar("T")

Parts = list[tuple[list[int], Any]]
"""The outputs for one batch: indices of features, and the model's output for them."""

_SIZE_OPTION: Final = "training.per_device_eval_batch_size"


class EvaluationInterruptedError(Exception):
    """An evaluation ended early because `interrupt` asked for it; the training is unchanged.

    An exception, because it has to leave the task's own loop over the batches.
    """


class Evaluator:
    """`interrupt` is called after each batch: True ends the evaluation. `together`: no process can
    run the model without the others, so a batch that does not fit into memory is an error;
    otherwise it is computed in parts, with one call of `notice`."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        objective: Objective,
        spec: TrainingSpec,
        tick: Callable[[], None],
        ranks: Ranks,
        interrupt: Callable[[], bool] = lambda: False,
        *,
        together: bool = False,
        notice: Callable[..., None] = lambda _message, **_data: None,
    ) -> None:
        self._together = together and ranks.world_size > 1
        self._accelerator = accelerator
        self._model = model
        self._objective = objective
        self._spec = spec
        self._tick = tick
        self._ranks = ranks
        self._interrupt = interrupt
        self._current_batch = CurrentBatch()
        self._notice = notice
        self._noticed_parts = False

    def __call__(self, split: str, folder: Path) -> Evaluation | None:
        """The task's evaluation of `split`, with its files under `folder`; None without such a
        split. Raises EvaluationInterruptedError.

        Metrics are named as by Trainer: `eval_loss`, `eval_<name>_loss` for one of several
        validation sets, `test_loss` for a test split with labels. Several processes share the
        batches, and each gets the outputs of all. The result is that of the first process.
        """
        if self._ranks.is_main_process:
            outcome = self._outcome(split, folder)
        else:
            with TemporaryDirectory() as unused:
                outcome = self._outcome(split, Path(unused))
        outcome = self._ranks.broadcast(outcome)
        if isinstance(outcome, EvaluationInterruptedError):
            raise outcome
        return outcome

    def run(self, compute: Callable[[], T]) -> T:
        """What `compute` gets by `forward` from the model in evaluation mode; the training is
        unchanged. All processes must call this."""
        with self._undisturbed():
            return compute()

    def _outcome(self, split: str, folder: Path) -> Evaluation | EvaluationInterruptedError | None:
        folder.mkdir(parents=True, exist_ok=True)
        try:
            with self._undisturbed():
                result = self._objective.evaluate(split, self.forward, folder)
        except EvaluationInterruptedError as interruption:
            return interruption
        if result is None:
            return None
        prefix = metric_prefix(split)
        metrics = {f"{prefix}{name}": value for name, value in result.metrics.items()}
        return replace(result, metrics=metrics)

    @contextmanager
    def _undisturbed(self) -> Iterator[None]:
        was_training = self._model.training
        self._model.eval()
        try:
            with (
                rng.preserved(),
                out_of_memory_explained(self._current_batch, _SIZE_OPTION),
                self._casting_weights_once(),
            ):
                if self._ranks.world_size > 1:  # all processes must draw the same random numbers
                    set_seed(self._spec.seed)
                yield
        finally:
            self._model.train(was_training)

    def _casting_weights_once(self) -> AbstractContextManager[None]:
        """One autocast context around the whole evaluation keeps the weights that were cast to half
        precision. Otherwise each forward pass casts them again, and generating a text takes many
        passes. It holds no more memory than a training step."""
        if self._together:  # sharded weights are gathered for each pass, and must not be kept
            return nullcontext()
        context: AbstractContextManager[None] = torch.autocast(
            self._accelerator.device.type, enabled=False
        )
        return context

    def forward(
        self,
        features: Features,
        collate: Collate,
        run: Run | None = None,
        *,
        generates: bool = False,
        numbers: Sequence[int] | None = None,
    ) -> Iterator[tuple[list[int], Any]]:
        """Implements `objective.Forward`: batches of similar length, the longest first; only those
        of `batches` with these `numbers`, if they are given.

        Each of N processes computes every N-th batch, and after each such round all of them get
        all outputs: at most one batch per process is held.
        """
        batches = self.batches(features)
        numbers = range(len(batches)) if numbers is None else numbers
        rounds = chunks(numbers, self._ranks.world_size)
        if generates and run is not None:
            run = self._in_job_precision(run)
        own = [self._own(numbers) for numbers in rounds]
        loader = Loader(features, collate, self._spec, keep_workers=False)
        loaded = loader.over([batches[number] for number in own if number is not None])

        def again(indices: list[int]) -> Batch:
            spec = self._spec.model_copy(update={"dataloader_num_workers": 0})
            return next(Loader(features, collate, spec, keep_workers=False).over([indices]))

        for together, number in zip(rounds, own, strict=True):
            found: Parts = []
            if number is not None:
                found = self._parts(next(loaded), batches[number], number, run, again)
            for _number, parts in zip(together, self._gathered(found), strict=False):
                yield from parts
                self._tick()
            if self._ranks.all_reduce_sum(int(self._interrupt())) != [0]:
                raise EvaluationInterruptedError

    def batches(self, features: Features) -> list[list[int]]:
        """The features of each batch of `forward`."""
        order = np.argsort(-lengths(features), kind="stable").tolist()
        return chunks(order, self._spec.eval_batch_size)

    def _in_job_precision(self, run: Run) -> Run:
        """`run`, which generates, under autocast as a whole: it calls encoders, and models inside
        adapters, without the forward pass that Accelerate has wrapped."""
        if self._together:  # as above; FSDP gathers the weights in half precision
            return run

        def within(model: torch.nn.Module, batch: Batch) -> Any:
            with self._accelerator.autocast():
                return run(model, batch)

        return within

    def _own(self, numbers: list[int]) -> int | None:
        """The batch of a round that this process computes. In a short last round some have none,
        or, with `together`, repeat that of another process, which is ignored."""
        place = self._ranks.rank
        if self._together:
            place = min(place, len(numbers) - 1)
        return numbers[place] if place < len(numbers) else None

    def _parts(
        self,
        batch: Batch,
        indices: list[int],
        number: int,
        run: Run | None,
        again: Callable[[list[int]], Batch],
    ) -> Parts:
        """The output of `batch`; when memory runs out, those of its halves, recursively.

        `again` collates some of the features. StageError(out_of_memory) when a single feature does
        not fit, or when the processes compute together.
        """
        try:
            with out_of_memory_explained(self._current_batch, _SIZE_OPTION):
                return [(indices, self._output(batch, number, run))]
        except StageError as error:
            is_memory = error.failure.code is FailureCode.OUT_OF_MEMORY
            if not is_memory or len(indices) == 1 or self._together:
                raise
        # Only after the handler: the frames of the exception hold the tensors of the attempt.
        clear_device_cache(garbage_collection=True)
        if not self._noticed_parts:
            self._noticed_parts = True
            self._notice(
                f"Out of memory in an evaluation with a batch of {len(indices)} sequences of "
                f"{self._current_batch.length} tokens: batches that do not fit are computed in "
                f"parts from here on. Lower `{_SIZE_OPTION}` to save the time of failed attempts",
                batch_size=len(indices),
                longest_sequence=self._current_batch.length,
            )
        middle = (len(indices) + 1) // 2
        halves = (indices[:middle], indices[middle:])
        return [part for h in halves for part in self._parts(again(h), h, number, run, again)]

    def _output(self, batch: Batch, number: int, run: Run | None) -> Any:
        self._current_batch.record(*shape_of(batch))
        # Generation may sample: a batch gets the same random numbers in whichever process.
        torch.manual_seed(rng.generator(self._spec.seed, number).initial_seed())
        with torch.no_grad():  # not in `forward`, where it would cover the caller's code
            batch = on_device(batch, self._accelerator)
            if run is None and self._ranks.world_size == 1:
                return self._model(**batch)
            # Unwrapped, its forward keeps the job's precision but calls no other process, and its
            # own methods can be called.
            bare = self._accelerator.unwrap_model(self._model, keep_torch_compile=False)
            return bare(**batch) if run is None else run(bare, batch)

    def _gathered(self, found: Parts) -> list[Parts]:
        """The outputs of all processes, in their order, on this process's device."""
        if self._ranks.world_size == 1:
            return [found]
        sent = [(i, recursively_apply(_sent, _without_states(output))) for i, output in found]
        device = self._accelerator.device

        def here(output: Any) -> Any:
            return recursively_apply(lambda each: each.to(device), output)

        return [
            [(i, here(output)) for i, output in parts] for parts in self._ranks.all_gather(sent)
        ]


def _without_states(output: Any) -> Any:
    """A model's output with its loss and logits only: caches and hidden states are far larger, and
    no evaluation uses them."""
    if not isinstance(output, ModelOutput):
        return output
    kept = {n: v for n, v in output.items() if n == "loss" or n.endswith("logits")}
    return type(output)(**kept)


def _sent(tensor: torch.Tensor) -> torch.Tensor:
    """A copy on the CPU: a view would be sent with all the memory that it is a view of."""
    return tensor.detach().to("cpu", copy=True)


def on_device(batch: Batch, accelerator: Accelerator) -> Batch:
    """The batch on the model's device. The model must get it next: its mask is read here."""
    attention_masks.read_batch(batch)
    sent = {n: value.to(accelerator.device, non_blocking=True) for n, value in batch.items()}
    padding_free.read_batch(batch, sent)
    return sent
