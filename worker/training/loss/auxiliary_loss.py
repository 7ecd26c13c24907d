"""What a model's own forward pass adds to its cross entropy, such as the load-balancing loss of
mixture-of-experts models (Fedus et al. 2021, arXiv:2101.03961, eq. 4).

Tasks compute the cross entropy themselves, often without the logits of a whole batch, so these
terms are taken from the model: with labels, and with a cross entropy that is 0, its loss is their
sum, each with its coefficient. Whether there are any is found by a forward pass, because names and
conditions differ between models.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any, Final

import torch
from torch.nn import functional
from torch.overrides import TorchFunctionMode

from worker.training.kernels.equivalence_probe import PROBE_ERRORS, RTOL, probing, small_batch
from worker.training.loss.chunked_cross_entropy import CaptureHeadInput
from worker.training.objective import Batch, Collate, Features, Forward, Objective, Run

NAME: Final = "aux_loss"
"""The metric; TRL's name, but with the coefficients."""


class _WithoutCrossEntropy(TorchFunctionMode):
    """While open, each cross entropy is 0, whatever the shapes of its arguments."""

    used = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: object,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        given = kwargs or {}
        if func is not functional.cross_entropy:
            return func(*args, **given)
        self.used = True
        logits = args[0] if args else given["input"]
        return logits.new_zeros((), dtype=torch.float32)


class AuxiliaryTerms:
    """The terms of the first forward pass while `AuxiliaryLoss.observed` is open."""

    term: torch.Tensor | None = None
    """A scalar."""


class AuxiliaryLoss:
    """Models without such terms are called as they are."""

    def __init__(self, *, present: bool = False, needs_logits: bool = False) -> None:
        """`needs_logits`: the terms depend on the logits of the whole batch."""
        self.present = present
        self.needs_logits = needs_logits
        self._seen: AuxiliaryTerms | None = None

    @property
    def names(self) -> tuple[str, ...]:
        return (NAME,) if self.present else ()

    @contextmanager
    def observed(self) -> Iterator[AuxiliaryTerms]:
        self._seen = seen = AuxiliaryTerms()
        try:
            yield seen
        finally:
            self._seen = None

    def call(self, model: Any, inputs: Mapping[str, Any], labels: torch.Tensor) -> Any:
        """The model's output. `labels`: shaped like the tokens that have a logit each; their values
        do not matter."""
        seen = self._seen
        if not self.present or seen is None or seen.term is not None:
            return model(**inputs)
        with _WithoutCrossEntropy():
            output = model(**{**inputs, "labels": labels})
        seen.term = output.loss
        return output

    def added(
        self, total: torch.Tensor, values: torch.Tensor | None, seen: AuxiliaryTerms, items: int
    ) -> tuple[torch.Tensor, torch.Tensor | None]:
        """The sum of the losses of `items`, and what is logged, with the terms.

        The terms are means over a micro-batch, which counts by its items: the mean over an
        optimizer step then depends little on how the step is divided.
        """
        if seen.term is None:
            return total, values
        term = seen.term.float() * items
        own = torch.stack((term.detach().double(), term.new_tensor(items, dtype=torch.float64)))
        columns = [own[:, None]] if values is None else [values, own[:, None]]
        return total + term, torch.cat(columns, dim=1)

    def scored(self, forward: Forward) -> "ScoredForward":
        return ScoredForward(self, forward)


class ScoredForward:
    """A `Forward` that also collects the terms of the batches that it runs."""

    def __init__(self, auxiliary: AuxiliaryLoss, forward: Forward) -> None:
        self._auxiliary = auxiliary
        self._forward = forward
        self._sum, self._count = 0.0, 0

    def __call__(
        self, features: Features, collate: Collate, run: Run, *, generates: bool = False
    ) -> Iterator[tuple[list[int], Any]]:
        if not self._auxiliary.present:
            yield from self._forward(features, collate, run, generates=generates)
            return
        both = partial(self._run, run)
        for indices, (found, term) in self._forward(features, collate, both, generates=generates):
            self._sum += float(term) * len(indices)
            self._count += len(indices)
            yield indices, found

    def _run(self, run: Run, model: torch.nn.Module, batch: Batch) -> tuple[Any, torch.Tensor]:
        with self._auxiliary.observed() as seen:
            found = run(model, batch)
        assert seen.term is not None, "`run` computes a loss"
        return found, seen.term.detach()

    def added(self, metrics: dict[str, float]) -> dict[str, float]:
        """The metrics, with the terms in the loss: their mean over the rows, as by Trainer."""
        if not self._count:
            return metrics
        term = self._sum / self._count
        return {**metrics, "loss": metrics["loss"] + term, NAME: term}


def of_objective(objective: Objective) -> AuxiliaryLoss:
    """That of an objective that calls its model by `AuxiliaryLoss.call`; others have none."""
    found: AuxiliaryLoss = getattr(objective, "auxiliary", AuxiliaryLoss())
    return found


@torch.no_grad()
def find(model: Any, linear: torch.nn.Linear | None) -> AuxiliaryLoss:
    """What the bare `model` adds to the cross entropy of a small batch. `linear`: its head, if its
    input may be captured."""
    if "labels" not in inspect.signature(model.forward).parameters:
        return AuxiliaryLoss()
    with probing(model):
        try:
            term = _term(model)
            if term is None or not term.any():
                return AuxiliaryLoss()
            captured: torch.Tensor | None = term
            if linear is not None:
                with CaptureHeadInput(model):
                    captured = _term(model)
        except PROBE_ERRORS:
            return AuxiliaryLoss()
    same = captured is not None and bool((captured - term).abs() <= RTOL * term.abs())
    return AuxiliaryLoss(present=True, needs_logits=not same)


def _term(model: Any) -> torch.Tensor | None:
    """None if the model's loss is not a cross entropy."""
    batch = small_batch(model)
    if model.config.is_encoder_decoder:
        batch["decoder_input_ids"] = batch["input_ids"]
    caches = "use_cache" in inspect.signature(model.forward).parameters
    options = {"use_cache": False} if caches else {}
    with _WithoutCrossEntropy() as mode:
        term: torch.Tensor = model(**batch, **options, labels=batch["input_ids"]).loss
    return term if mode.used else None
