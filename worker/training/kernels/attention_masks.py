"""Attention masks that are made without a look at the device.

transformers leaves a mask out that hides nothing, so that torch may take its fastest attention, and
reads each batch's mask to find that out; of a batch without a mask it reads the positions, to see
whether several sequences share a row. On a GPU this waits, in every forward pass, for all that the
device was given before. Here both are known from the batch while it is on the CPU.
"""

from typing import Any, Final

import torch
from transformers import AttentionMaskInterface, masking_utils
from transformers.masking_utils import sdpa_mask

from worker.training.kernels import cpu_attention
from worker.training.objective import Batch

_hides_nothing: bool | None = None
"""The padding mask of the batch in hand; None without one."""
_counts_up = False
"""Whether the batch in hand leaves the positions to the model, which then counts each row's from
its first token to its last."""
_read_positions: Final = masking_utils.find_packed_sequence_indices


def install() -> None:
    """In this process, the padding masks for models with torch's attention, the positions for
    all."""
    AttentionMaskInterface.register("sdpa", mask)
    masking_utils.find_packed_sequence_indices = _packed_sequences


def see(batch: Batch) -> None:
    """`batch` is what the model is given next, still on the CPU."""
    global _hides_nothing, _counts_up  # transformers asks without saying for which batch
    mask = batch.get("attention_mask")
    _hides_nothing = None if mask is None else bool(mask.all())
    # Of a padded batch the sequences may be joined into one row, with positions of their own.
    _counts_up = "position_ids" not in batch and _hides_nothing is not False


def _packed_sequences(position_ids: torch.Tensor) -> torch.Tensor | None:
    """As `find_packed_sequence_indices`: transformers asks where the model was given no mask."""
    if _counts_up or cpu_attention.is_packed():  # of a packed batch the attention keeps them apart
        return None
    return _read_positions(position_ids)


def mask(
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
