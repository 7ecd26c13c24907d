"""What the models of transformers add to their cross entropy, and whether we add the same.

    python -m benchmarks.model_losses [TYPE ...]

Prints the table of docs/tasks.md: for each type of model a tiny one with random weights, whose own
loss and gradients are compared with ours, with padded batches and without padding. Types whose loss
is the cross entropy of their logits are only counted.
"""

import copy
import sys
import warnings
from collections import Counter
from dataclasses import dataclass
from typing import Any, Final

import torch
import transformers
from torch.nn import functional

from tests.support import every_model
from worker.tasks.common import sequence_batches
from worker.tasks.language_modeling.next_token import NextTokenObjective
from worker.training.kernels import padding_free
from worker.training.loss import auxiliary_loss, chunked_cross_entropy

LENGTHS: Final = (200, 5, 63, 17)
OPTIONS: Final[dict[str, Any]] = {
    "output_router_logits": True,
    "router_aux_loss_coef": 0.5,
    "aux_loss_coef": 0.5,
    "z_loss_coefficient": 0.01,
}
IGNORED: Final = -100


@dataclass(frozen=True)
class Comparison:
    """Differences of ours from the model's own loss; gradients relative to the largest number."""

    added: float
    """By the model to its cross entropy."""
    padded: tuple[float, float]
    """Loss and gradients."""
    packed: tuple[float, float] | None
    """Without padding; None where batches stay padded."""


def compare(model_type: str) -> Comparison | None:
    """Of a causal language model; None if it adds nothing. LookupError without a tiny model."""
    model = _model(model_type)
    if not auxiliary_loss.find(model, None).present:
        return None
    own = _own(model)
    packed = copy.deepcopy(model)
    is_packed = padding_free.install(packed) is not None
    return Comparison(
        added=float(own[0] - _cross_entropy(model)),
        padded=_apart(_ours(model), own),
        packed=_apart(_ours(packed), own) if is_packed else None,
    )


def _model(model_type: str) -> Any:
    """The first that computes a loss."""
    for model in every_model.models("causal-lm", model_type, **OPTIONS):
        try:
            _own(model)
        except Exception:
            continue
        _choose_unevenly(model)
        return model
    raise LookupError(f"no tiny model of type {model_type}")


@torch.no_grad()
def _choose_unevenly(model: Any) -> None:
    """Routers with initial weights choose nearly evenly, whatever they count."""
    for name, weight in model.named_parameters():
        if weight.dim() == 2 and ("router" in name or "gate.w" in name):
            weight.normal_()


def _features() -> list[dict[str, list[int]]]:
    rows = every_model.batch(LENGTHS)["input_ids"]
    return [{"input_ids": row[:length].tolist()} for row, length in zip(rows, LENGTHS, strict=True)]


def _own(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    batch = every_model.batch(LENGTHS)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    return _with_gradients(model, model(**batch, labels=labels, use_cache=False).loss)


class _Loss(NextTokenObjective):
    def collate(self, features: Any) -> Any:
        raise NotImplementedError

    def evaluate(self, split: str, forward: Any, folder: Any) -> Any:
        raise NotImplementedError


def _ours(model: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    objective = _Loss({}, model, chunked_cross_entropy.plain_head(model))
    batch = sequence_batches.collate(_features(), 0)
    items = objective.item_count(batch)
    with objective.auxiliary.observed() as seen:
        total = objective.loss_sum(model, batch)
    total, _values = objective.auxiliary.added(total, None, seen, items)
    return _with_gradients(model, total / items)


def _with_gradients(model: Any, loss: Any) -> tuple[torch.Tensor, dict[str, torch.Tensor]]:
    model.zero_grad()
    loss.backward()
    return loss.detach(), {
        name: weight.grad.clone()
        for name, weight in model.named_parameters()
        if weight.grad is not None
    }


@torch.no_grad()
def _cross_entropy(model: Any) -> torch.Tensor:
    batch = every_model.batch(LENGTHS)
    labels = batch["input_ids"].masked_fill(batch["attention_mask"] == 0, IGNORED)
    logits = model(**batch, use_cache=False).logits
    return functional.cross_entropy(logits[:, :-1].flatten(0, 1), labels[:, 1:].flatten())


def _apart(
    found: tuple[torch.Tensor, dict[str, torch.Tensor]],
    expected: tuple[torch.Tensor, dict[str, torch.Tensor]],
) -> tuple[float, float]:
    largest = max(float(each.abs().max()) for each in expected[1].values())
    gradients = max(
        float((found[1].get(name, torch.zeros(())) - each).abs().max())
        for name, each in expected[1].items()
    )
    return float((found[0] - expected[0]).abs()), gradients / largest


def main() -> None:
    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    types = sys.argv[1:] or list(every_model.MAPPINGS["causal-lm"])
    print("| type | adds | padded: loss, gradients | without padding |\n|---|---|---|---|")
    counts: Counter[str] = Counter()
    for model_type in types:
        try:
            found = compare(model_type)
        except LookupError:
            counts["could not be made tiny"] += 1
            continue
        counts["add nothing" if found is None else "add a term"] += 1
        if found is not None:
            packed = "padded" if found.packed is None else _text(found.packed)
            print(f"| `{model_type}` | {found.added:.2f} | {_text(found.padded)} | {packed} |")
    print("\n" + ", ".join(f"{count} types {what}" for what, count in counts.items()))


def _text(apart: tuple[float, float]) -> str:
    return ", ".join(f"{each:.0e}" for each in apart)


if __name__ == "__main__":
    main()
