"""worker.training.kernels.cpu_attention: what it computes, and how it drops."""

from typing import Any

import pytest
import torch
from torch.nn import functional
from transformers.integrations.sdpa_attention import repeat_kv

from worker.training.kernels import cpu_attention, cpu_dropout
from worker.training.kernels.cpu_dropout import keep_bits

HEADS, LENGTH, WIDTH = 2, 9, 4
Inputs = tuple[torch.Tensor, torch.Tensor, torch.Tensor]
"""Queries, keys and values."""


@pytest.fixture
def inputs() -> Inputs:
    torch.manual_seed(1)
    shape = (2, HEADS, LENGTH, WIDTH)
    query, key, value = (torch.randn(shape, requires_grad=True) for _ in range(3))
    return query, key, value


def gradients(mixed: torch.Tensor, inputs: Inputs) -> list[torch.Tensor]:
    torch.manual_seed(2)
    return list(torch.autograd.grad(mixed, inputs, torch.randn(mixed.shape)))


def by_hand(inputs: Inputs, kept: torch.Tensor, dropout: float, mask: torch.Tensor) -> torch.Tensor:
    query, key, value = inputs
    scores = query @ key.transpose(-1, -2) * 0.5 + mask
    return (scores.softmax(-1) * kept / (1 - dropout)) @ value


@pytest.mark.parametrize("causal", [False, True])
def test_drops_single_weights_after_the_softmax(inputs: Inputs, causal: bool) -> None:
    module = torch.nn.Module()
    torch.manual_seed(3)
    mixed, _ = cpu_attention.attention(
        module, *inputs, None, dropout=0.3, scaling=0.5, is_causal=causal
    )
    torch.manual_seed(3)
    drawn = [keep_bits(torch.empty(HEADS, LENGTH, LENGTH), 0.3) for _ in range(2)]
    kept = torch.stack(drawn).ne(0).float()
    assert 0 < kept.mean() < 1
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1) if causal else torch.zeros(())
    expected = by_hand(inputs, kept, 0.3, mask).transpose(1, 2)
    torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-6)
    for found, wanted in zip(gradients(mixed, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_dropout_it_is_torchs(dtype: torch.dtype, inputs: Inputs) -> None:
    seen = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    seen[1, :, :, 5:] = False
    query, key, value = (each.detach().to(dtype) for each in inputs)
    mixed, _ = cpu_attention.attention(torch.nn.Module(), query, key, value, seen, scaling=0.5)
    expected = functional.scaled_dot_product_attention(
        query.float(), key.float(), value.float(), attn_mask=seen, scale=0.5
    )
    tolerance = 1e-6 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(
        mixed.transpose(1, 2).float(), expected, rtol=tolerance, atol=tolerance
    )


@pytest.mark.parametrize(("tile", "rows"), [(1, 1), (20, 2), (40, 4), (1 << 20, 128)])
@pytest.mark.parametrize("kind", ["plain", "causal", "masked", "packed", "packed and causal"])
def test_tiles_do_not_change_the_result(
    inputs: Inputs,
    monkeypatch: pytest.MonkeyPatch,
    tile: int,
    rows: int,
    kind: str,
) -> None:
    """With dropout that keeps all: only then the fused attention is not taken in its place."""
    monkeypatch.setattr(cpu_attention, "_TILE", tile)
    monkeypatch.setattr(cpu_attention, "_CAUSAL_ROWS", rows)
    monkeypatch.setattr(
        cpu_dropout, "keep_bits", lambda like, _p: torch.full(like.shape, -1).short()
    )
    seen = torch.rand(2, 1, LENGTH, LENGTH) < 0.7
    options: dict[str, Any] = {"scaling": 0.5, "is_causal": "causal" in kind}
    if "packed" in kind:
        query, key, value = (each.detach()[:1].requires_grad_() for each in inputs)
        inputs = (query, key, value)
        options["sequences"] = (0, 1, 5, 5, LENGTH)
    if kind == "masked":
        options["attention_mask"] = seen | torch.eye(LENGTH, dtype=torch.bool)
    options.setdefault("attention_mask", None)
    module = torch.nn.Module()
    mixed, _ = cpu_attention.attention(module, *inputs, dropout=1e-9, **options)
    expected, _ = cpu_attention.attention(module, *inputs, dropout=0.0, **options)
    torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-6)
    for found, wanted in zip(gradients(mixed, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


def test_causal_queries_after_others() -> None:
    """As in generation: the queries are the last of the keys."""
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, HEADS, n, WIDTH).bfloat16() for n in (3, 9, 9))
    mixed, _ = cpu_attention.attention(torch.nn.Module(), query, key, value, None, is_causal=True)
    seen = torch.ones(3, 9, dtype=torch.bool).tril(6)
    expected = functional.scaled_dot_product_attention(
        query.float(), key.float(), value.float(), attn_mask=seen
    )
    torch.testing.assert_close(mixed.transpose(1, 2).float(), expected, rtol=2e-2, atol=2e-2)


def test_sequences_of_a_row_do_not_see_each_other(inputs: Inputs) -> None:
    query, key, value = (each[:1].detach() for each in inputs)
    apart, _ = cpu_attention.attention(
        torch.nn.Module(), query, key, value, None, is_causal=False, sequences=(0, 4, LENGTH)
    )
    for start, end in ((0, 4), (4, LENGTH)):
        part = (slice(None), slice(None), slice(start, end))
        alone, _ = cpu_attention.attention(
            torch.nn.Module(), query[part], key[part], value[part], None, is_causal=False
        )
        torch.testing.assert_close(apart[:, start:end], alone)


def test_heads_share_keys_and_values() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, LENGTH, WIDTH) for heads in (4, 2, 2))
    module: Any = torch.nn.Module()
    module.num_key_value_groups = 2
    mixed, _ = cpu_attention.attention(module, query, key, value, None, is_causal=True)
    expected = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(mixed.transpose(1, 2), expected)


class Grouped(torch.nn.Module):
    num_key_value_groups = 2


@pytest.mark.parametrize("dropout", [0.0, 0.3])
def test_repeats_heads_as_autograd_does(dropout: float) -> None:
    """But keeps them once."""
    torch.manual_seed(0)
    shapes = [(1, heads, LENGTH, WIDTH) for heads in (4, 2, 2)]
    given = [torch.randn(shape).bfloat16().requires_grad_() for shape in shapes]
    query, key, value = given
    sides = {
        Grouped(): (query, key, value),
        torch.nn.Module(): (query, repeat_kv(key, 2), repeat_kv(value, 2)),
    }
    found = []
    for module, inputs in sides.items():
        torch.manual_seed(1)
        mixed, _ = cpu_attention.attention(module, *inputs, None, dropout, is_causal=True)
        by_inputs = torch.autograd.grad(mixed, given, torch.ones_like(mixed) + mixed.detach())
        found.append((mixed, *by_inputs))
    for mine, theirs in zip(*found, strict=True):
        assert torch.equal(mine, theirs)


class TestAutocast:
    """Rotary positions in float32 make queries and keys float32, while values are bfloat16."""

    @pytest.mark.parametrize("dropout", [0.0, 0.3])
    def test_computes_in_its_dtype(self, inputs: Inputs, dropout: float) -> None:
        query, key, value = (each.detach() for each in inputs)
        module = torch.nn.Module()
        narrow = query.bfloat16(), key.bfloat16(), value.bfloat16()
        torch.manual_seed(1)
        expected, _ = cpu_attention.attention(module, *narrow, None, dropout)
        torch.manual_seed(1)
        with torch.autocast("cpu", torch.bfloat16):
            found, _ = cpu_attention.attention(module, query, key, value.bfloat16(), None, dropout)
        assert torch.equal(found, expected)
