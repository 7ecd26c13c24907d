"""Attention over the sequences of a packed batch on a GPU; each attends only to itself.

`worker.training.kernels.padding_free` packs the sequences; two kernels of torch separate them,
given where each starts. `varlen` is flash attention: half precision, GPUs from Ampere on, no
dropout. `efficient` is torch's memory-efficient attention for nested tensors: any precision, any
GPU, with dropout. Neither needs a device sync, and both have a deterministic backward pass if
torch's deterministic algorithms are on.
"""

from typing import Any, Final, Literal, NamedTuple

import torch
from torch.nn.attention import varlen
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import repeat_kv, sdpa_attention_forward

from worker.training.kernels import attention_masks, cpu_attention, equivalence_probe

NAME: Final = "finetune_varlen"
"""The name of this attention in transformers."""

Kernel = Literal["varlen", "efficient"]

_HALF: Final = (torch.bfloat16, torch.float16)
_AMPERE: Final = (8, 0)


class Sequences(NamedTuple):
    """The sequences of a packed row. Its filler counts as one more: the kernels leave the result
    undefined for tokens outside all sequences."""

    starts: torch.Tensor
    """int32, on the device: the start of each, then the end of the last one."""
    longest: int
    kernel: Kernel


def kernels(capability: tuple[int, int], dtype: torch.dtype, dropout: float) -> list[Kernel]:
    """The kernels that can compute this, the fastest first. `dropout`: of single weights."""
    flash = capability >= _AMPERE and dtype in _HALF and dropout == 0
    return ["varlen", "efficient"] if flash else ["efficient"]


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
    is_causal: bool | None = None,  # noqa: FBT001 - the signature is transformers'
    sequences: Sequences | None = None,
    **others: Any,
) -> tuple[torch.Tensor, None]:
    """(batch, heads, length, width) each → (batch, length, heads, width).

    With `sequences`, from `worker.training.kernels.padding_free`, `batch` is 1; without, this is
    torch's own attention. ValueError for a packed batch with a mask, or if the scores depend on
    more.
    """
    if sequences is None:
        arguments = {"dropout": dropout, "scaling": scaling, "is_causal": is_causal, **others}
        whole: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **arguments
        )
        return whole
    if equivalence_probe.is_probing():
        cpu_attention.require_known(others)
    cpu_attention.require_only_sequences(attention_mask, others)
    causal = getattr(module, "is_causal", True) if is_causal is None else is_causal
    scale = query.shape[-1] ** -0.5 if scaling is None else scaling
    if torch.is_autocast_enabled(query.device.type):  # rotary positions may have cast to float32
        dtype = torch.get_autocast_dtype(query.device.type)
        query, key, value = (each.to(dtype) for each in (query, key, value))
    # An evaluation without autocast is in float32.
    flash = sequences.kernel == "varlen" and dropout == 0 and query.dtype in _HALF
    if flash:
        return _varlen(query, key, value, sequences, scale, causal=causal), None
    groups = query.shape[1] // key.shape[1]
    key, value = repeat_kv(key, groups), repeat_kv(value, groups)
    return _efficient(query, key, value, sequences, scale, dropout, causal=causal), None


def _varlen(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: Sequences,
    scale: float,
    *,
    causal: bool,
) -> torch.Tensor:
    grouped = query.shape[1] != key.shape[1]
    mixed: Any = varlen.varlen_attn(
        query[0].transpose(0, 1),
        key[0].transpose(0, 1),
        value[0].transpose(0, 1),
        sequences.starts,
        sequences.starts,
        sequences.longest,
        sequences.longest,
        scale=scale,
        window_size=(-1, 0) if causal else (-1, -1),
        enable_gqa=grouped,
    )
    whole: torch.Tensor = mixed[None]
    return whole


def _efficient(
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    sequences: Sequences,
    scale: float,
    dropout: float,
    *,
    causal: bool,
) -> torch.Tensor:
    """As `jagged_scaled_dot_product_attention` in torch.nested calls it, without nested tensors."""
    mixed: torch.Tensor = torch.ops.aten._efficient_attention_forward(
        *(each.transpose(1, 2) for each in (query, key, value)),
        None,
        sequences.starts,
        sequences.starts,
        sequences.longest,
        sequences.longest,
        dropout,
        int(causal),
        compute_log_sumexp=True,
        scale=scale,
    )[0]
    return mixed


def _mask(**options: Any) -> torch.Tensor | None:
    if cpu_attention.is_packed():
        return cpu_attention.packed_mask(options["mask_function"], options["device"])
    return attention_masks.mask(**options)
