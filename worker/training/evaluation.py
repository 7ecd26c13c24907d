"""Runs the model over features without gradients, and leaves the training as it found it."""

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, Protocol

import numpy as np
import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from accelerate.utils.memory import clear_device_cache
from accelerate.utils.operations import recursively_apply
from transformers.utils.generic import ModelOutput

from service.contract.failures import FailureCode, StageError
from service.contract.splits import metric_prefix
from service.contract.training import TrainingSpec
from worker.training import rng
from worker.training.batches.dataloader import Loader, chunks
from worker.training.batches.samplers import lengths
from worker.training.distributed.ranks import Ranks
from worker.training.kernels import attention_masks, padding_free
from worker.training.memory import BatchInHand, out_of_memory_explained
from worker.training.objective import Batch, Collate, Evaluation, Features, Objective, Run

Parts = list[tuple[list[int], Any]]
"""Of one batch: which features, and the model's output for them."""

_SIZE_OPTION: Final = "training.per_device_eval_batch_size"


class EvaluationLeftError(Exception):
    """Left in the middle, as it was asked for; the training is as it was before."""


class _Notice(Protocol):
    def __call__(self, message: str, **data: object) -> None: ...


def _unheard(message: str, **data: object) -> None:
    pass


class Evaluator:
    """`leave` says, after each batch, whether to give up at once. `together`: no process can run
    the model without the others, and a batch for which memory runs out ends the evaluation; else
    it is computed in parts, and `notice` is told once."""

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
        notice: _Notice = _unheard,
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
        self._notice = notice
        self._has_told = False

    def __call__(self, split: str, folder: Path) -> Evaluation | None:
        """The task's evaluation of `split`, its files under `folder`; None without such a split.
        EvaluationLeftError.

        Metrics are named as Trainer names them: `eval_loss`, of one of several validation sets
        `eval_<name>_loss`, of a test split with labels `test_loss`. Several processes share the
        batches, and each is given the outputs of all: metrics are those of one process. The first
        one's are taken, and its files.
        """
        if self._ranks.is_first:
            outcome = self._outcome(split, folder)
        else:
            with TemporaryDirectory() as unused:
                outcome = self._outcome(split, Path(unused))
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
                rng.preserved(),
                out_of_memory_explained(self._in_hand, _SIZE_OPTION),
                self._casting_weights_once(),
            ):
                if self._ranks.count > 1:  # whatever is drawn, all of them do the same
                    set_seed(self._spec.seed)
                result = self._objective.evaluate(split, self.forward, folder)
        finally:
            self._model.train(was_training)
        if result is None:
            return None
        prefix = metric_prefix(split)
        metrics = {f"{prefix}{name}": value for name, value in result.metrics.items()}
        return replace(result, metrics=metrics)

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
        self,
        features: Features,
        collate: Collate,
        run: Run | None = None,
        *,
        generates: bool = False,
    ) -> Iterator[tuple[list[int], Any]]:
        """Implements `objective.Forward`: batches of similar length, the longest first.

        Of N processes each computes every N-th batch, and after each such round all of them get
        the outputs of all: no more are held than one batch's for each process.
        """
        order = np.argsort(-lengths(features), kind="stable").tolist()
        batches = chunks(order, self._spec.eval_batch_size)
        rounds = chunks(range(len(batches)), self._ranks.count)
        if generates and run is not None:
            run = self._in_job_precision(run)
        own = [self._own(numbers) for numbers in rounds]
        loader = Loader(features, collate, self._spec, keep_workers=False)
        loaded = loader.over([batches[number] for number in own if number is not None])

        def again(indices: list[int]) -> Batch:
            spec = self._spec.model_copy(update={"dataloader_num_workers": 0})
            return next(Loader(features, collate, spec, keep_workers=False).over([indices]))

        for numbers, number in zip(rounds, own, strict=True):
            found: Parts = []
            if number is not None:
                found = self._parts(next(loaded), batches[number], number, run, again)
            for _number, parts in zip(numbers, self._gathered(found), strict=False):
                yield from parts
                self._tick()
            if self._is_left():
                raise EvaluationLeftError

    def _in_job_precision(self, run: Run) -> Run:
        """`run`, which generates, under autocast as a whole. The model's forward pass has it by
        itself, but an encoder and the model inside an adapter are called around that."""
        if self._together:  # as above; the weights are gathered in half precision where it counts
            return run

        def within(model: torch.nn.Module, batch: Batch) -> Any:
            with self._accelerator.autocast():
                return run(model, batch)

        return within

    def _own(self, numbers: list[int]) -> int | None:
        """Which of a round's batches this process computes. In a last, short round some have none,
        or, where the others cannot do without them, the same as another; it is not looked at."""
        place = self._ranks.number
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
        """The output of `batch`; where memory runs out, those of its halves, or of theirs.
        StageError(out_of_memory): it runs out for a single feature, or the processes compute
        together. `again` collates some of the features."""
        try:
            with out_of_memory_explained(self._in_hand, _SIZE_OPTION):
                return [(indices, self._output(batch, number, run))]
        except StageError as error:
            is_memory = error.failure.code is FailureCode.OUT_OF_MEMORY
            if not is_memory or len(indices) == 1 or self._together:
                raise
        # Only here: while the exception is handled, its frames hold the tensors of the attempt.
        clear_device_cache(garbage_collection=True)
        self._tell_of_halves(len(indices))
        middle = (len(indices) + 1) // 2
        halves = (indices[:middle], indices[middle:])
        return [part for h in halves for part in self._parts(again(h), h, number, run, again)]

    def _tell_of_halves(self, size: int) -> None:
        if self._has_told:
            return
        self._has_told = True
        self._notice(
            f"Out of memory in an evaluation at a batch of {size} sequences of "
            f"{self._in_hand.length} tokens: batches that are too large are computed in parts from "
            f"here on. Lower `{_SIZE_OPTION}` to save the time of the attempts",
            batch_size=size,
            longest_sequence=self._in_hand.length,
        )

    def _output(self, batch: Batch, number: int, run: Run | None) -> Any:
        self._in_hand.see(batch)
        # Generated texts may be drawn: each batch's are the same, whoever computes it.
        torch.manual_seed(rng.generator(self._spec.seed, number).initial_seed())
        with torch.no_grad():  # not around the consumer's code
            return self._run(on_device(batch, self._accelerator), run)

    def _gathered(self, found: Parts) -> list[Parts]:
        """What all processes found, in their order and on this one's device."""
        if self._ranks.count == 1:
            return [found]
        sent = [(i, recursively_apply(_sent, _without_states(output))) for i, output in found]
        device = self._accelerator.device

        def here(output: Any) -> Any:
            return recursively_apply(lambda each: each.to(device), output)

        return [[(i, here(output)) for i, output in parts] for parts in self._ranks.gathered(sent)]

    def _is_left(self) -> bool:
        leave = self._leave()
        return leave if self._ranks.count == 1 else self._ranks.sums(int(leave)) != [0]

    def _run(self, batch: Batch, run: Run | None) -> Any:
        if run is None and self._ranks.count == 1:
            return self._model(**batch)
        # Unwrapped it has its own methods, and its forward keeps the job's precision, but calls no
        # other process.
        bare = self._accelerator.unwrap_model(self._model, keep_torch_compile=False)
        return bare(**batch) if run is None else run(bare, batch)


def _without_states(output: Any) -> Any:
    """A model's output with its loss and its logits alone: caches and hidden states are far larger,
    and no evaluation asks for them."""
    if not isinstance(output, ModelOutput):
        return output
    kept = {n: v for n, v in output.items() if n == "loss" or n.endswith("logits")}
    return type(output)(**kept)


def _sent(tensor: torch.Tensor) -> torch.Tensor:
    """On the CPU, and of its own: a view would be sent with all that it is a view of."""
    return tensor.detach().to("cpu", copy=True)


def on_device(batch: Batch, accelerator: Accelerator) -> Batch:
    """The batch where the model is, which must be given it next: its mask is read here."""
    attention_masks.see(batch)
    sent = {n: value.to(accelerator.device, non_blocking=True) for n, value in batch.items()}
    padding_free.see(batch, sent)
    return sent
