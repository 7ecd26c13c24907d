"""A model's head only where there is a label: most tokens of a masked batch have none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from worker.training.kernels.equivalence_probe import RTOL, Refusal, small_batch, tried_out
from worker.training.kernels.padding_free import rounded


def places_of(wanted: torch.Tensor, unwanted: torch.Tensor | None = None) -> torch.Tensor:
    """(places,) of the `wanted` tokens in the flattened rectangle, bool, (batch, length). To be
    asked of a batch on the CPU: how many there are, a device would have to tell.

    Given `unwanted` tokens as well, the first of them is repeated until there is a `rounded` number
    of places, so that logits of few different sizes occur. Places are sorted.
    """
    places = wanted.flatten().nonzero()[:, 0]
    missing = rounded(len(places)) - len(places)
    if unwanted is None or not missing or not bool(unwanted.any()):
        return places
    filler = unwanted.flatten().to(torch.uint8).argmax().expand(missing)
    return torch.cat((places, filler)).sort().values


@contextmanager
def only_at(
    model: Any, places: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> Iterator[None]:
    """Inside, the head of `model` sees the hidden states at `places` alone.

    The logits come as (1, places, classes). The body may itself work on packed batches
    (`worker.training.kernels.padding_free`), and then needs the mask, (batch, length).
    """

    def select(_body: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        states = output[0].flatten(0, 1)
        chosen = places
        if attention_mask is not None and output[0].shape[:2] != attention_mask.shape:  # packed
            chosen = attention_mask.flatten().cumsum(0)[places] - 1
        output["last_hidden_state"] = states.index_select(0, chosen)[None]
        return output

    handle = model.base_model.register_forward_hook(select)
    try:
        yield
    finally:
        handle.remove()


@torch.no_grad()
def can_select(model: Any) -> bool:
    """Whether `only_at` gives what the whole head gives there: tried out on a small batch."""
    with tried_out(model):
        batch = small_batch(model)
        wanted = batch["attention_mask"].bool()
        wanted[:, ::2] = False
        try:
            expected = model(**batch).logits[wanted]
            with only_at(model, places_of(wanted), batch["attention_mask"]):
                found = model(**batch).logits
        except Refusal:
            return False
    return found.shape == (1, *expected.shape) and bool(
        (found[0] - expected).abs().max() <= RTOL * expected.std()
    )
