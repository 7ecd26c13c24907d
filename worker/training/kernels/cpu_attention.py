"""Attention on a CPU with cheap dropout, computed one sequence at a time for packed batches.

With dropout, torch's fused attention leaves its fast path on a CPU. Most of the time then goes into
drawing the dropout mask, with one call of the generator for each of the L x L weights. Here all are
drawn at once (`worker.training.kernels.cpu_dropout`) and applied by a bitwise "and". The result is
ordinary attention: softmax, dropout of single weights, product with the values.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise, product
from typing import Any, Final, Literal

import torch
from torch.nn import functional
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward
from transformers.masking_utils import (
    AttentionMaskInterface,
    bidirectional_mask_function,
    causal_mask_function,
    sdpa_mask,
)
from transformers.utils.generic import TransformersKwargs

from worker.training.kernels import cpu_dropout, equivalence_probe

NAME: Final = "finetune_cpu"
"""The name of this attention in transformers."""

_TILE: Final = 1 << 20
"""Most weights that are computed at once. 8 x 12 heads of 512 tokens took 415 ms at once, and
205 ms in tiles (forward and backward, two cores with 2 MB of second-level cache)."""
_CAUSAL_ROWS: Final = 128
# Arguments that change the scores in a way that only the model's own attention implements.
FOREIGN: Final = ("softcap", "position_bias", "s_aux", "sliding_window", "cache")
# Other arguments that models hand to any attention; none changes the scores here.
_HARMLESS: Final = (
    *TransformersKwargs.__annotations__,
    *("cache_position", "deterministic", "encoder_attention_mask", "encoder_hidden_states"),
    *("inputs_embeds", "logits_to_keep", "past_key_values", "position_embeddings", "return_dict"),
    "use_cache",
)
_PLAIN_MASKS: Final = (causal_mask_function, bidirectional_mask_function)

Sequences = tuple[int, ...]
"""The start of each sequence of a packed batch, then the end of the last one. The filler after it
takes no part in attention."""
Kernel = Literal["fused", "plain"]


def register() -> None:
    """Make the attention known to transformers under its name."""
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
    is_causal: bool | None = None,  # noqa: FBT001 - the signature is transformers'
    sequences: Sequences | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """(batch, heads, length, width) each → (batch, length, heads, width).

    `sequences` comes from `worker.training.kernels.padding_free`; `batch` is then 1, and no token
    attends to another sequence. ValueError if the scores depend on more than this attention knows.
    """
    # Rotary positions turn queries and keys into float32 if the weights are: the choice between the
    # kernels would then take them for float32 products, and the values would have another dtype.
    if torch.is_autocast_enabled("cpu"):
        dtype = torch.get_autocast_dtype("cpu")
        query, key, value = query.to(dtype), key.to(dtype), value.to(dtype)
    if equivalence_probe.is_probing():
        require_known(others)
    if sequences is not None:
        require_only_sequences(attention_mask, others)
    if is_foreign(others):
        arguments = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
        mixed: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **arguments
        )
        return mixed
    groups = getattr(module, "num_key_value_groups", 1)
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    causal = causal and attention_mask is None and query.shape[2] > 1
    if dropout == 0 and _kernel(module, query.dtype) == "fused":
        key, value = repeat_kv(key, groups), repeat_kv(value, groups)
        mixed_heads = fused(query, key, value, scale, attention_mask, sequences, causal=causal)
    else:
        if attention_mask is not None:
            attention_mask = _additive(attention_mask, query.dtype)
            attention_mask = attention_mask.expand(*query.shape[:3], key.shape[2])
        mixed_heads = plain(
            query,
            key,
            value,
            scale,
            attention_mask,
            sequences,
            causal=causal,
            dropout=dropout,
            groups=groups,
        )
    return mixed_heads.transpose(1, 2).contiguous(), None


def require_known(others: Mapping[str, Any]) -> None:
    """ValueError if a model hands its attention an argument that this one would drop, also if it is
    None: the keys that a sparse attention selects are all or none where a row is short enough."""
    unknown = others.keys() - {*FOREIGN, *_HARMLESS}
    if unknown:
        raise ValueError(f"this attention does not know {', '.join(sorted(unknown))}")


def require_only_sequences(attention_mask: torch.Tensor | None, others: Mapping[str, Any]) -> None:
    """ValueError if the attention of a packed row depends on more than its sequences."""
    if attention_mask is not None:
        raise ValueError("the model's attention mask depends on more than causality and padding")
    if is_foreign(others):
        raise ValueError("this attention cannot be computed over packed sequences")


def is_foreign(others: Mapping[str, Any]) -> bool:
    return any(others.get(name) is not None for name in FOREIGN)


@dataclass(frozen=True)
class Kernels:
    """What computes attention without dropout in half precision."""

    training: Kernel = "plain"
    evaluation: Kernel = "plain"


_kernels = Kernels()


def use(kernels: Kernels) -> None:
    """Use these kernels in this process from now on; `cpu_attention_choice` chooses them."""
    global _kernels  # transformers calls the attention without the job
    _kernels = kernels


def _kernel(module: torch.nn.Module, dtype: torch.dtype) -> Kernel:
    if dtype == torch.float32:
        return "fused"  # it keeps no weights for the backward pass
    return _kernels.training if module.training else _kernels.evaluation


def fused(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None = None,
    sequences: Sequences | None = None,
    *,
    causal: bool,
) -> torch.Tensor:
    """torch's kernel; (batch, heads, length, width) each, as is the result."""

    def whole(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        return functional.scaled_dot_product_attention(
            q, k, v, attn_mask=mask, scale=scale, is_causal=causal
        )

    if sequences is None:
        return whole(query, key, value)
    sizes = [end - start for start, end in pairwise(sequences)]
    filler = query.shape[2] - sequences[-1]
    *parts, (left, *_) = zip(
        *(tensor.split([*sizes, filler], 2) for tensor in (query, key, value)), strict=True
    )
    return torch.cat([*(whole(*part) for part in parts), torch.zeros_like(left)], dim=2)


def plain(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    scale: float,
    mask: torch.Tensor | None = None,
    sequences: Sequences | None = None,
    *,
    causal: bool,
    dropout: float = 0.0,
    groups: int = 1,
) -> torch.Tensor:
    """Products, softmax and dropout one after the other; (batch, heads, length, width) each, as is
    the result. `mask` is added to the scores; keys and values may have 1 / `groups` of the heads.
    """
    tiles = list(_tiles(query.shape, key.shape[2], sequences, causal=causal))
    with torch.autocast("cpu", enabled=False):
        mixed: torch.Tensor = _Attention.apply(
            query, key, value, mask, scale, dropout, tiles, causal, groups
        )
    return mixed


def _additive(mask: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """The mask as what is added to the scores."""
    if mask.dtype != torch.bool:
        return mask
    return torch.zeros(mask.shape, dtype=dtype).masked_fill_(~mask, torch.finfo(dtype).min)


@dataclass(frozen=True)
class _Tile:
    """Some heads of some queries of one sequence, and the keys that they attend to."""

    batch: int
    heads: slice
    rows: slice
    columns: slice

    def of_queries(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self.batch, self.heads, self.rows]

    def of_keys(self, tensor: torch.Tensor) -> torch.Tensor:
        return tensor[self.batch, self.heads, self.columns]


def _tiles(
    shape: torch.Size, keys: int, sequences: Sequences | None, *, causal: bool
) -> Iterator[_Tile]:
    """Tiles so small that their weights stay in the CPU's cache between the steps of the
    computation; causal tiles leave out keys that no query attends to.

    `shape` is that of the queries, `keys` the number of keys.
    """
    batch, heads, length, _width = shape
    ranges = [(0, length, 0, keys)]
    if sequences is not None:
        ranges = [(start, end, start, end) for start, end in pairwise(sequences)]
    for row, (start, end, first, last) in product(range(batch), ranges):
        rows = min(end - start, _CAUSAL_ROWS) if causal else end - start
        for top in range(start, end, max(1, rows)):  # none of an empty sequence
            bottom = min(top + rows, end)
            seen = last - (end - bottom) if causal else last
            together = max(1, _TILE // ((bottom - top) * (seen - first)))
            for head in range(0, heads, together):
                some = slice(head, min(head + together, heads))
                yield _Tile(row, some, slice(top, bottom), slice(first, seen))


class _Attention(torch.autograd.Function):
    """softmax(q kᵀ · scale + mask), each weight dropped with probability `dropout`, times v.

    Each head of the keys and values belongs to `groups` heads of the queries; they are repeated
    here, so that the backward pass keeps them once.
    """

    @staticmethod
    def forward(
        ctx: Any,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        mask: torch.Tensor | None,
        scale: float,
        dropout: float,
        tiles: list[_Tile],
        causal: bool,  # noqa: FBT001 - `apply` takes no keyword arguments
        groups: int,
    ) -> torch.Tensor:
        query = query * scale
        ctx.scale, ctx.tiles, ctx.rescale = scale, tiles, 1 / (1 - dropout)
        ctx.groups = groups
        # Scaling the values takes length x width products instead of length x length.
        value = value * ctx.rescale
        single = key, value
        key, value = (repeat_kv(each, groups) for each in single)
        mixed = query.new_zeros((*query.shape[:3], value.shape[3]))
        kept: list[torch.Tensor] = []
        every: list[torch.Tensor] = []
        for tile in tiles:
            scores = tile.of_queries(query) @ tile.of_keys(key).transpose(-1, -2)
            if mask is not None:
                scores += tile.of_queries(mask)[..., tile.columns]
            if causal:
                _hide_later(scores)
            weights = torch.softmax(scores, dim=-1)
            every.append(weights)
            if dropout:
                kept.append(cpu_dropout.keep_bits(weights, dropout))
                weights = cpu_dropout.masked(weights, kept[-1])
            tile.of_queries(mixed).copy_(weights @ tile.of_keys(value))
        ctx.save_for_backward(query, *single, *every, *kept)
        return mixed

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        query, key, value, *saved = ctx.saved_tensors
        every, kept = saved[: len(ctx.tiles)], saved[len(ctx.tiles) :]
        key, value = repeat_kv(key, ctx.groups), repeat_kv(value, ctx.groups)
        rescaled = gradient * ctx.rescale
        by_query, by_key, by_value = map(torch.zeros_like, (query, key, value))
        for number, (tile, weights) in enumerate(zip(ctx.tiles, every, strict=True)):
            by_weights = tile.of_queries(gradient) @ tile.of_keys(value).transpose(-1, -2)
            left = weights
            if kept:
                by_weights = cpu_dropout.masked(by_weights, kept[number])
                left = cpu_dropout.masked(weights, kept[number])
            tile.of_keys(by_value).add_(left.transpose(-1, -2) @ tile.of_queries(rescaled))
            by_scores = torch._softmax_backward_data(by_weights, weights, -1, weights.dtype)
            tile.of_queries(by_query).copy_(by_scores @ tile.of_keys(key))
            tile.of_keys(by_key).add_(by_scores.transpose(-1, -2) @ tile.of_queries(query))
        by_key, by_value = (_of_groups(each, ctx.groups) for each in (by_key, by_value))
        return by_query.mul_(ctx.scale), by_key, by_value, *[None] * 6


def _of_groups(by_repeated: torch.Tensor, groups: int) -> torch.Tensor:
    """The gradient of what `repeat_kv` repeated."""
    if groups == 1:
        return by_repeated
    summed: torch.Tensor = by_repeated.unflatten(1, (-1, groups)).sum(dim=2)
    return summed


def _hide_later(scores: torch.Tensor) -> None:
    """The last query attends to all keys, the one before it to all but one, and so on."""
    rows = scores.shape[-2]
    later = torch.ones((rows, rows), dtype=torch.bool).triu_(1)
    scores[..., -rows:].masked_fill_(later, torch.finfo(scores.dtype).min)


_packed = False


def set_packed(*, packed: bool) -> None:
    """Whether batches are packed. If so, no mask is made: the attention separates sequences."""
    global _packed  # transformers asks for masks without passing the model
    _packed = packed


def is_packed() -> bool:
    return _packed


def packed_mask(mask_function: Any, device: Any) -> torch.Tensor | None:
    """None, if a model's mask depends on causality and padding alone. Else, as with a window, a
    chunk or a block, a mask that our attention refuses: some models make one that no layer uses.

    The function decides and not its values, which are the same in rows that are short enough.
    """
    is_plain = mask_function in _PLAIN_MASKS
    return None if is_plain else torch.zeros((1, 1, 1, 1), dtype=torch.bool, device=device)


def _mask(*arguments: Any, **options: Any) -> torch.Tensor | None:
    if _packed:
        return packed_mask(options["mask_function"], options["device"])
    mask: torch.Tensor | None = sdpa_mask(*arguments, **options)
    # Padding beyond a window sees nothing. torch's attention gives zeros there, whose norm has no
    # gradient in some models (Gemma 3n): as in their own attention, it sees all tokens.
    return None if mask is None else mask | ~mask.any(dim=-1, keepdim=True)
