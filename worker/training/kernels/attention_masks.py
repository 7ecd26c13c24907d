"""Building attention masks without a device sync.

transformers drops a mask that hides nothing, so that torch can use its fastest attention. To find
out, it reads each batch's mask; for a batch without a mask it reads the positions, to see whether
several sequences share a row. On a GPU each read waits, in every forward pass, for all work that is
queued. Here both facts are read from the batch while it is still on the CPU.
"""

from typing import Any, Final

import torch
from transformers import AttentionMaskInterface, masking_utils
from transformers.masking_utils import sdpa_mask

from worker.training.kernels import cpu_attention
from worker.training.objective import Batch

_hides_nothing: bool | None = None
"""Whether the current batch has no padding; None if it has no mask."""
_counts_up = False
"""Whether the current batch leaves the positions to the model, which then counts them from the
first token of each row to the last."""
_read_positions: Final = masking_utils.find_packed_sequence_indices


def install() -> None:
    """Replace transformers' functions in this process: masks for models with torch's attention,
    positions for all models."""
    AttentionMaskInterface.register("sdpa", mask)
    masking_utils.find_packed_sequence_indices = _packed_sequences


def leave_packed_rows() -> None:
    """Replace the second function alone, and for packed rows alone: our attention separates their
    sequences itself, and the mask functions that it is asked for are then the model's own."""
    if masking_utils.find_packed_sequence_indices is _read_positions:
        masking_utils.find_packed_sequence_indices = _unless_packed


def read_batch(batch: Batch) -> None:
    """Note what the masks need to know of the model's next batch, which is still on the CPU."""
    global _hides_nothing, _counts_up  # transformers does not pass the batch
    mask = batch.get("attention_mask")
    _hides_nothing = None if mask is None else bool(mask.all())
    # A padded batch may be packed into one row, where each sequence has positions of its own.
    _counts_up = "position_ids" not in batch and _hides_nothing is not False


def _packed_sequences(position_ids: torch.Tensor) -> torch.Tensor | None:
    """As `find_packed_sequence_indices`, which transformers calls where the model got no mask."""
    return None if _counts_up else _unless_packed(position_ids)


def _unless_packed(position_ids: torch.Tensor) -> torch.Tensor | None:
    return None if cpu_attention.is_packed() else _read_positions(position_ids)


def mask(
    *,
    kv_length: int,
    attention_mask: torch.Tensor | None = None,
    kv_offset: int = 0,
    **options: Any,
) -> torch.Tensor | None:
    """As `sdpa_mask`."""
    # A mask that is shorter than the keys hides those beyond its end.
    covers = attention_mask is not None and attention_mask.shape[-1] >= kv_length + kv_offset
    if covers and _hides_nothing is True:
        attention_mask = None
    elif covers and _hides_nothing is False:
        options |= {"allow_is_causal_skip": False, "allow_is_bidirectional_skip": False}
    made: torch.Tensor | None = sdpa_mask(
        kv_length=kv_length, kv_offset=kv_offset, attention_mask=attention_mask, **options
    )
    return made
