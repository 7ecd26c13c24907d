"""Attention masks that are made without a look at the device.

transformers leaves a mask out that hides nothing, so that torch may take its fastest attention, and
reads each batch's mask to find that out. On a GPU this waits, in every forward pass, for all that
the device was given before. Here it is read of the batch on the CPU.
"""

from typing import Any

import torch
from transformers import AttentionMaskInterface
from transformers.masking_utils import sdpa_mask

from worker.training.objective import Batch

_hides_nothing: bool | None = None
"""The padding mask of the batch in hand; None without one."""


def install() -> None:
    """In this process, for models with torch's attention."""
    AttentionMaskInterface.register("sdpa", _mask)


def see(batch: Batch) -> None:
    """`batch` is what the model is given next, still on the CPU."""
    global _hides_nothing  # transformers asks for masks without saying for which batch
    mask = batch.get("attention_mask")
    _hides_nothing = None if mask is None else bool(mask.all())


def _mask(
    *,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    kv_offset: int = 0,
    **options: Any,
) -> torch.Tensor | None:
    """As `sdpa_mask`."""
    # A mask that ends before the keys hides those that are beyond it.
    covers = attention_mask is not None and attention_mask.shape[-1] >= kv_length + kv_offset
    if covers and _hides_nothing is True:
        attention_mask = None
    elif covers and _hides_nothing is False:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    made: torch.Tensor | None = sdpa_mask(
        kv_length=kv_length, kv_offset=kv_offset, attention_mask=attention_mask, **options
    )
    return made
