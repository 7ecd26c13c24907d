"""Attention on a CPU whose dropout costs little, one sequence after the other where batches are
packed.

With dropout, torch's fused attention leaves its fast path on a CPU, and most of what then remains
is the drawing of the dropout's mask: one call of the generator for each of the L x L weights. Here
one 32-bit draw serves two weights, and the mask is applied by a bitwise "and". What is computed is
ordinary attention: softmax, then dropout of single weights, then their product with the values.
"""

from itertools import pairwise
from typing import Any, Final

import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

NAME: Final = "finetune_cpu"
"""What transformers knows the attention by."""

_STEPS: Final = 1 << 15
_LANE: Final = {2: torch.int16, 4: torch.int32}
# Arguments that change the scores in ways that only the model's own attention knows.
_FOREIGN: Final = ("softcap", "position_bias", "s_aux", "sliding_window", "cache")

Sequences = tuple[int, ...]
"""Where each sequence of a packed batch starts, and at last where the batch ends."""


def register() -> None:
    """Make the attention known to transformers under `NAME`."""
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, _mask)


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    is_causal: bool | None = None,
    sequences: Sequences | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """(batch, heads, length, width) each, to (batch, length, heads, width).

    `sequences` comes from `worker.training.packing`, and then `batch` is 1: no token sees another
    sequence.
    """
    if any(others.get(name) is not None for name in _FOREIGN):
        arguments = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
        mixed: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **arguments
        )
        return mixed
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = causal and attention_mask is None and query.shape[2] > 1
    if sequences is None:
        mixed_heads = _attend(query, key, value, attention_mask, scale, dropout, causal=causal)
    else:
        sizes = [end - start for start, end in pairwise(sequences)]
        queries, keys, values = (each.split(sizes, dim=2) for each in (query, key, value))
        alone = [
            _attend(q, k, v, None, scale, dropout, causal=causal)
            for q, k, v in zip(queries, keys, values, strict=True)
        ]
        mixed_heads = torch.cat(alone, dim=2)
    return mixed_heads.transpose(1, 2).contiguous(), None


def _attend(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    mask: torch.Tensor | None,
    scale: float,
    dropout: float,
    *,
    causal: bool,
) -> torch.Tensor:
    # In bf16 the fused kernel is slower than plain products on CPUs without AMX, and its
    # backward pass much slower.
    if dropout == 0 and query.dtype == torch.float32:
        return functional.scaled_dot_product_attention(
            query, key, value, attn_mask=mask, scale=scale, is_causal=causal
        )
    if causal:
        length = (query.shape[2], key.shape[2])
        mask = torch.ones(length, dtype=torch.bool).tril(length[1] - length[0])
    if mask is not None and mask.dtype == torch.bool:
        mask = torch.zeros(mask.shape, dtype=query.dtype).masked_fill_(
            ~mask, torch.finfo(query.dtype).min
        )
    with torch.autocast("cpu", enabled=False):
        mixed: torch.Tensor = _Attention.apply(query, key, value, mask, scale, dropout)
    return mixed


class _Attention(torch.autograd.Function):
    """softmax(q kᵀ · scale + mask), each weight dropped with probability `dropout`, times v."""

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        dropout: float,
    ) -> torch.Tensor:
        query = query * scale
        scores = query @ key.transpose(-1, -2)
        if mask is not None:
            scores += mask
        weights = torch.softmax(scores, dim=-1)
        kept = keep_bits(weights, dropout) if dropout else None
        # Scaling the values takes length x width products instead of length x length.
        ctx.rescale = 1 / (1 - dropout)
        value = value * ctx.rescale
        ctx.scale = scale
        ctx.save_for_backward(query, key, value, weights, kept)
        return _masked(weights, kept) @ value

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        query, key, value, weights, kept = ctx.saved_tensors
        by_weights = gradient @ value.transpose(-1, -2)
        if kept is not None:
            by_weights.view(kept.dtype).bitwise_and_(kept)
        by_value = _masked(weights, kept).transpose(-1, -2) @ (gradient * ctx.rescale)
        by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype)
        by_query = (by_scores @ key) * ctx.scale
        by_key = by_scores.transpose(-1, -2) @ query
        return by_query, by_key, by_value, None, None, None


def keep_bits(like: torch.Tensor, dropout: float) -> torch.Tensor:
    """Integers of the shape and width of `like`: all bits set with probability 1 - `dropout`,
    else none.

    The probability is that of a 15-bit number, off by at most 1/65536. Draws from torch's default
    generator, so that a checkpoint's random state covers it.
    """
    words = torch.empty((like.numel() + 1) // 2, dtype=torch.int32).random_()
    lanes = words.bitwise_and_(0x7FFF7FFF).view(torch.int16)[: like.numel()].view(like.shape)
    dropped = round(dropout * _STEPS)
    # dropped - 1 - lane is negative just where the lane is kept; the shift spreads its sign.
    bits = lanes.neg_().add_(dropped - 1).bitwise_right_shift_(15)
    return bits.to(_LANE[like.element_size()])


def _masked(weights: torch.Tensor, kept: torch.Tensor | None) -> torch.Tensor:
    return weights if kept is None else (weights.view(kept.dtype) & kept).view(weights.dtype)


_packed = False


def packed(now: bool) -> None:
    """Whether batches are packed: then no mask is made, the attention keeps sequences apart."""
    global _packed  # transformers asks for masks without saying for which model
    _packed = now


def _mask(*arguments: Any, **options: Any) -> torch.Tensor | None:
    mask: torch.Tensor | None = None if _packed else sdpa_mask(*arguments, **options)
    return mask
