"""Computing a model's head only where there is a label: most tokens of a masked batch have none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from worker.training.kernels.equivalence_probe import PROBE_ERRORS, RTOL, probing, small_batch
from worker.training.kernels.padding_free import round_up


def positions_of(wanted: torch.Tensor, unwanted: torch.Tensor | None = None) -> torch.Tensor:
    """(places,) sorted indices of the `wanted` tokens, bool (batch, length), when flattened. For a
    batch on the CPU: on a device their number would need a sync.

    Given `unwanted` tokens as well, the first of them is repeated until `round_up` is reached, so
    that logits of few different sizes occur.
    """
    places = wanted.flatten().nonzero()[:, 0]
    missing = round_up(len(places)) - len(places)
    if unwanted is None or not missing or not bool(unwanted.any()):
        return places
    filler = unwanted.flatten().to(torch.uint8).argmax().expand(missing)
    return torch.cat((places, filler)).sort().values


def before(places: torch.Tensor, end: int) -> torch.Tensor:
    """Those of the sorted `places` that are below `end`."""
    return places[: int(torch.searchsorted(places, end))]


def states_at(
    states: torch.Tensor, places: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> torch.Tensor:
    """(places, hidden) of (batch, length, hidden), without a device sync.

    The states of a packed batch (`worker.training.kernels.padding_free`), (1, tokens, hidden), need
    the mask of the padded one, (batch, length), which the `places` are in.
    """
    if attention_mask is not None and states.shape[:2] != attention_mask.shape:  # packed
        places = attention_mask.flatten().cumsum(0).index_select(0, places) - 1
    return states.flatten(0, 1).index_select(0, places)


@contextmanager
def only_at(
    model: Any, places: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> Iterator[None]:
    """While open, the head of `model` gets only the hidden states at `places`.

    The logits are (1, places, classes). A body that computes packed batches
    (`worker.training.kernels.padding_free`) needs the mask, (batch, length).
    """

    def select(_body: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        output["last_hidden_state"] = states_at(output[0], places, attention_mask)[None]
        return output

    handle = model.base_model.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def can_select(model: Any) -> bool:
    """Whether `only_at` gives the same as the whole head at those places; tested on a small
    batch."""
    with probing(model):
        try:
            batch = small_batch(model)
            wanted = batch["attention_mask"].bool()
            wanted[:, ::2] = False
            expected = model(**batch).logits[wanted]
            with only_at(model, positions_of(wanted), batch["attention_mask"]):
                found = model(**batch).logits
        except PROBE_ERRORS:
            return False
    return found.shape == (1, *expected.shape) and bool(
        (found[0] - expected).abs().max() <= RTOL * expected.std()
    )
