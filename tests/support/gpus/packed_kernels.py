"""torch's two GPU kernels for packed attention, computed plainly on the CPU.

They are registered under torch's own operators, so that torch's own code calls them: varlen_attn
with its checks and its backward pass, the dispatcher, and autograd's formulas.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

import pytest
import torch

from worker.training import build
from worker.training.kernels import gpu_padding_free

Tensors = tuple[torch.Tensor, ...]


@dataclass
class PackedKernels:
    """What the kernels were given, in the order of the calls; `sees_all` makes them wrong."""

    calls: list[dict[str, Any]] = field(default_factory=list)
    sees_all: bool = False
    """Each token sees the whole row."""
    forgets_dropout: bool = False
    error: str | None = None
    """Raised by flash attention's forward pass."""

    @property
    def names(self) -> list[str]:
        return [call["kernel"] for call in self.calls]

    def flash(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        starts: torch.Tensor,
        _starts: torch.Tensor,
        longest: int,
        _longest: int,
        dropout: float,
        causal: bool,
        _debug: bool,
        *,
        scale: float,
        window_size_left: int,
        window_size_right: int,
        **_unused: Any,
    ) -> Tensors:
        if self.error is not None:
            raise RuntimeError(self.error)
        assert query.dtype in (torch.bfloat16, torch.float16), "flash attention has no other"
        window = (window_size_left, window_size_right)
        self._note("varlen", query, key, starts, longest, causal=causal, window=window)
        assert dropout == 0
        assert causal == (window == (-1, 0))
        mixed = self._mixed(query, key, value, starts, scale, causal=causal)
        nothing = torch.zeros(0)
        lse = torch.zeros(query.shape[1], query.shape[0])
        return mixed, lse, torch.zeros(2, dtype=torch.uint64), nothing, nothing

    def flash_backward(
        self,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _out: torch.Tensor,
        _lse: torch.Tensor,
        starts: torch.Tensor,
        _starts: torch.Tensor,
        _longest: int,
        _longest_key: int,
        _dropout: float,
        causal: bool,
        *_others: Any,
        scale: float,
        **_windows: Any,
    ) -> Tensors:
        return self._gradients(gradient, query, key, value, starts, scale, causal=causal)

    def efficient(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _bias: None,
        starts: torch.Tensor,
        _starts: torch.Tensor,
        longest: int,
        longest_key: int,
        dropout: float,
        causal: int,
        for_backward: bool,
        *,
        scale: float,
        **_unused: Any,
    ) -> tuple[Any, ...]:
        assert for_backward
        assert query.shape == key.shape, "it has no groups of heads"
        self._note("efficient", query[0], key[0], starts, longest, causal=causal == 1)
        seed = torch.empty((), dtype=torch.int64).random_()
        mixed = self._mixed(
            query[0],
            key[0],
            value[0],
            starts,
            scale,
            dropout,
            seed,
            causal=causal == 1,
        )
        return mixed[None], torch.zeros(1), seed, torch.zeros_like(seed), longest, longest_key

    def efficient_backward(
        self,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        _bias: None,
        _out: torch.Tensor,
        starts: torch.Tensor,
        _starts: torch.Tensor,
        _longest: int,
        _longest_key: int,
        _lse: torch.Tensor,
        dropout: float,
        seed: torch.Tensor,
        _offset: torch.Tensor,
        causal: int,
        *_others: Any,
        scale: float,
        **_unused: Any,
    ) -> Tensors:
        found = self._gradients(
            gradient[0],
            query[0],
            key[0],
            value[0],
            starts,
            scale,
            dropout,
            seed,
            causal=causal == 1,
        )
        return *(each[None] for each in found), torch.empty(0)

    def _note(
        self,
        kernel: str,
        query: torch.Tensor,
        key: torch.Tensor,
        starts: torch.Tensor,
        longest: int,
        **others: Any,
    ) -> None:
        assert starts.dtype == torch.int32
        ends = [int(place) for place in starts]
        assert ends[0] == 0
        assert ends[-1] == len(query), "the numbers of the other tokens would be undefined"
        sizes = [end - start for start, end in pairwise(ends)]
        assert max(sizes) == longest
        heads = (query.shape[1], key.shape[1])
        self.calls.append({"kernel": kernel, "sizes": sizes, "heads": heads, **others})

    def _mixed(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        starts: torch.Tensor,
        scale: float,
        dropout: float = 0.0,
        seed: torch.Tensor | None = None,
        *,
        causal: bool,
    ) -> torch.Tensor:
        """(tokens, heads, width) each."""
        weights, kept = self._weights(query, key, starts, scale, dropout, seed, causal=causal)
        value = value.repeat_interleave(query.shape[1] // key.shape[1], dim=1)
        return torch.einsum("hqk,khd->qhd", weights * kept, value.float()).to(query.dtype)

    def _weights(
        self,
        query: torch.Tensor,
        key: torch.Tensor,
        starts: torch.Tensor,
        scale: float,
        dropout: float,
        seed: torch.Tensor | None,
        *,
        causal: bool,
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Of single keys, (heads, tokens, tokens), and what dropout multiplies them by."""
        tokens, groups = len(query), query.shape[1] // key.shape[1]
        number = torch.bucketize(torch.arange(tokens), starts.long()[1:], right=True)
        hidden = (number[:, None] != number) & (not self.sees_all)
        if causal:
            hidden = hidden | torch.ones(tokens, tokens, dtype=torch.bool).triu(1)
        key = key.repeat_interleave(groups, dim=1)
        scores = torch.einsum("qhd,khd->hqk", query.float(), key.float()) * scale
        weights = scores.masked_fill(hidden, -torch.inf).softmax(-1)
        if not dropout or self.forgets_dropout:
            return weights, torch.ones(())
        assert seed is not None
        generator = torch.Generator().manual_seed(int(seed) >> 1)
        kept = torch.rand(weights.shape, generator=generator) >= dropout
        return weights, kept / (1 - dropout)

    def _gradients(
        self,
        gradient: torch.Tensor,
        query: torch.Tensor,
        key: torch.Tensor,
        value: torch.Tensor,
        starts: torch.Tensor,
        scale: float,
        dropout: float = 0.0,
        seed: torch.Tensor | None = None,
        *,
        causal: bool,
    ) -> Tensors:
        weights, kept = self._weights(query, key, starts, scale, dropout, seed, causal=causal)
        heads, groups = key.shape[1], query.shape[1] // key.shape[1]
        whole = (each.repeat_interleave(groups, dim=1).float() for each in (key, value))
        (keys, values), given = whole, gradient.float()
        by_weights = torch.einsum("qhd,khd->hqk", given, values) * kept
        by_scores = weights * (by_weights - (by_weights * weights).sum(-1, keepdim=True)) * scale
        by_key = torch.einsum("hqk,qhd->khd", by_scores, query.float())
        by_value = torch.einsum("hqk,qhd->khd", weights * kept, given)
        # Each head of the keys has served a group of the queries'.
        shared = (each.unflatten(1, (heads, groups)).sum(2) for each in (by_key, by_value))
        by_query = torch.einsum("hqk,khd->qhd", by_scores, keys)
        return tuple(each.to(query.dtype) for each in (by_query, *shared))


@contextmanager
def on_the_cpu() -> Iterator[PackedKernels]:
    kernels = PackedKernels()
    library = torch.library.Library("aten", "IMPL")
    parts = {
        "_flash_attention_forward": kernels.flash,
        "_flash_attention_backward": kernels.flash_backward,
        "_efficient_attention_forward": kernels.efficient,
        "_efficient_attention_backward": kernels.efficient_backward,
    }
    for name, function in parts.items():
        library.impl(name, function, "CPU")
    try:
        yield kernels
    finally:
        library._destroy()


@contextmanager
def as_on_ampere(patch: pytest.MonkeyPatch) -> Iterator[PackedKernels]:
    """Jobs choose their attention as on a GPU that has both kernels, and compute on the CPU."""
    cpu, install = torch.device("cpu"), gpu_padding_free.install
    patch.setattr(torch.cuda, "get_device_capability", lambda _device: (8, 0))
    patch.setattr(
        gpu_padding_free,
        "install",
        lambda model, spec, _device, given: install(model, spec, cpu, given),
    )
    choose = build.choose_attention
    patch.setattr(
        build,
        "choose_attention",
        lambda model, spec, _device, given: choose(model, spec, torch.device("cuda"), given),
    )
    with on_the_cpu() as made:
        yield made
