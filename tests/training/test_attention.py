"""worker.training.attention: what it computes, and how it drops."""

import pytest
import torch
from torch.nn import functional

from worker.training import attention

HEADS, LENGTH, WIDTH = 2, 9, 4


@pytest.fixture
def inputs() -> tuple[torch.Tensor, ...]:
    torch.manual_seed(1)
    shape = (2, HEADS, LENGTH, WIDTH)
    return tuple(torch.randn(shape, requires_grad=True) for _ in range(3))


def gradients(mixed: torch.Tensor, inputs: tuple[torch.Tensor, ...]) -> list[torch.Tensor]:
    torch.manual_seed(2)
    return list(torch.autograd.grad(mixed, inputs, torch.randn(mixed.shape)))


def by_hand(
    inputs: tuple[torch.Tensor, ...], kept: torch.Tensor, dropout: float, mask: torch.Tensor
) -> torch.Tensor:
    query, key, value = inputs
    scores = query @ key.transpose(-1, -2) * 0.5 + mask
    return (scores.softmax(-1) * kept / (1 - dropout)) @ value


@pytest.mark.parametrize("causal", [False, True])
def test_drops_single_weights_after_the_softmax(
    inputs: tuple[torch.Tensor, ...], causal: bool
) -> None:
    module = torch.nn.Module()
    torch.manual_seed(3)
    mixed, _ = attention.attention(
        module, *inputs, None, dropout=0.3, scaling=0.5, is_causal=causal
    )
    torch.manual_seed(3)
    kept = attention.keep_bits(torch.empty(2, HEADS, LENGTH, LENGTH), 0.3).ne(0).float()
    assert 0 < kept.mean() < 1
    mask = torch.full((LENGTH, LENGTH), -torch.inf).triu(1) if causal else torch.zeros(())
    expected = by_hand(inputs, kept, 0.3, mask).transpose(1, 2)
    torch.testing.assert_close(mixed, expected, rtol=1e-5, atol=1e-6)
    for found, wanted in zip(gradients(mixed, inputs), gradients(expected, inputs), strict=True):
        torch.testing.assert_close(found, wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_without_dropout_it_is_torchs(dtype: torch.dtype, inputs: tuple[torch.Tensor, ...]) -> None:
    seen = torch.ones(2, 1, LENGTH, LENGTH, dtype=torch.bool)
    seen[1, :, :, 5:] = False
    given = [each.detach().to(dtype) for each in inputs]
    mixed, _ = attention.attention(torch.nn.Module(), *given, seen, scaling=0.5)
    expected = functional.scaled_dot_product_attention(
        *(each.float() for each in given), attn_mask=seen, scale=0.5
    )
    tolerance = 1e-6 if dtype is torch.float32 else 2e-2
    torch.testing.assert_close(
        mixed.transpose(1, 2).float(), expected, rtol=tolerance, atol=tolerance
    )


def test_sequences_of_a_row_do_not_see_each_other(inputs: tuple[torch.Tensor, ...]) -> None:
    one = [each[:1].detach() for each in inputs]
    apart, _ = attention.attention(
        torch.nn.Module(), *one, None, is_causal=False, sequences=(0, 4, LENGTH)
    )
    for start, end in ((0, 4), (4, LENGTH)):
        alone, _ = attention.attention(
            torch.nn.Module(), *(each[:, :, start:end] for each in one), None, is_causal=False
        )
        torch.testing.assert_close(apart[:, start:end], alone)


def test_heads_share_keys_and_values() -> None:
    torch.manual_seed(0)
    query, key, value = (torch.randn(1, heads, LENGTH, WIDTH) for heads in (4, 2, 2))
    module = torch.nn.Module()
    module.num_key_value_groups = 2
    mixed, _ = attention.attention(module, query, key, value, None, is_causal=True)
    expected = functional.scaled_dot_product_attention(
        query, key, value, is_causal=True, enable_gqa=True
    )
    torch.testing.assert_close(mixed.transpose(1, 2), expected)


class TestKeepBits:
    @pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
    @pytest.mark.parametrize("dropout", [0.1, 0.5])
    def test_drops_so_many(self, dtype: torch.dtype, dropout: float) -> None:
        torch.manual_seed(0)
        bits = attention.keep_bits(torch.empty(1_000_001, dtype=dtype), dropout)
        assert bits.shape == (1_000_001,)
        assert bits.unique().tolist() == [-1, 0]
        # Four standard deviations of a million draws.
        assert float(bits.eq(0).double().mean()) == pytest.approx(dropout, abs=0.002)

    def test_neighbours_are_independent(self) -> None:
        """Two of them come from one draw."""
        torch.manual_seed(0)
        kept = attention.keep_bits(torch.empty(1_000_000), 0.5).ne(0).double().view(-1, 2)
        assert float(torch.corrcoef(kept.T)[0, 1]) == pytest.approx(0, abs=0.004)

    def test_follows_torchs_generator(self) -> None:
        torch.manual_seed(5)
        first = attention.keep_bits(torch.empty(99), 0.1)
        second = attention.keep_bits(torch.empty(99), 0.1)
        torch.manual_seed(5)
        assert torch.equal(attention.keep_bits(torch.empty(99), 0.1), first)
        assert not torch.equal(first, second)
