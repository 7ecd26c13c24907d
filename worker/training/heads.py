"""A model's head only where there is a label: most tokens of a masked batch have none."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from worker.training.probing import RTOL, Refusal, small_batch, tried_out


@contextmanager
def only_at(
    model: Any, wanted: torch.Tensor, attention_mask: torch.Tensor | None = None
) -> Iterator[None]:
    """Inside, the head of `model` sees the hidden states of the `wanted` tokens alone.

    `wanted` is bool, (batch, length) as `attention_mask`; the logits come as (1, wanted, classes),
    in the order of the rectangle. The body may itself work on packed batches
    (`worker.training.packing`), and then needs the mask.
    """

    def select(_body: torch.nn.Module, _inputs: Any, output: Any) -> Any:
        states = output[0]
        places = wanted
        if states.shape[:2] != wanted.shape:  # packed: without the padding
            assert attention_mask is not None, "only padded batches are packed"
            places = wanted[attention_mask.bool()][None]
        output["last_hidden_state"] = states[places][None]
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
            with only_at(model, wanted, batch["attention_mask"]):
                found = model(**batch).logits
        except Refusal:
            return False
    return found.shape == (1, *expected.shape) and bool(
        (found[0] - expected).abs().max() <= RTOL * expected.std()
    )
