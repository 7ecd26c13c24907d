"""cpu_dropout: how many numbers it drops, which, and where it takes torch's place."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from service.contract.spec.spec import JobSpec
from tests.training.support.jobs import Job, run
from worker.training import build
from worker.training.kernels import cpu_dropout, fused_gelu
from worker.training.kernels.cpu_dropout import keep_bits

DTYPES = (torch.float32, torch.bfloat16)
CPU = torch.device("cpu")


def quick(p: float = 0.1) -> torch.nn.Module:
    layer = torch.nn.Dropout(p)
    cpu_dropout.install(layer)
    return layer


class TestKeepBits:
    @pytest.mark.parametrize("dtype", DTYPES)
    @pytest.mark.parametrize("p", [0.001, 0.1, 0.5])
    def test_drops_so_many(self, dtype: torch.dtype, p: float) -> None:
        torch.manual_seed(0)
        bits = keep_bits(torch.empty(1_000_001, dtype=dtype), p)
        assert bits.shape == (1_000_001,)
        assert bits.unique().tolist() == [-1, 0]
        # Four standard deviations of a million draws, and what is rounded.
        within = 4 * (p * (1 - p) / 1e6) ** 0.5 + 1 / 65536
        assert float(bits.eq(0).double().mean()) == pytest.approx(p, abs=within)

    @pytest.mark.parametrize("apart", [1, 2, 3])
    def test_neighbours_are_independent(self, apart: int) -> None:
        """Four of them come from one draw."""
        torch.manual_seed(0)
        kept = keep_bits(torch.empty(1_000_000), 0.5).ne(0).double()
        pairs = torch.stack([kept[:-apart], kept[apart:]])
        assert float(torch.corrcoef(pairs)[0, 1]) == pytest.approx(0, abs=0.004)

    def test_follows_torchs_generator(self) -> None:
        torch.manual_seed(5)
        first, second = (keep_bits(torch.empty(99), 0.1) for _ in range(2))
        torch.manual_seed(5)
        assert torch.equal(keep_bits(torch.empty(99), 0.1), first)
        assert not torch.equal(first, second)

    def test_of_nothing(self) -> None:
        assert keep_bits(torch.empty(0, 4), 0.1).shape == (0, 4)


class TestLayer:
    @pytest.mark.parametrize("dtype", DTYPES)
    def test_scales_what_it_keeps_and_its_gradient(self, dtype: torch.dtype) -> None:
        given = torch.randn(7, 33, dtype=dtype, requires_grad=True)
        torch.manual_seed(3)
        found = quick(0.3)(given)
        torch.manual_seed(3)
        kept = keep_bits(given, 0.3).ne(0)
        assert 0 < kept.float().mean() < 1
        expected = (given * (1 / 0.7)).where(kept, torch.zeros((), dtype=dtype))
        assert torch.equal(found, expected)
        gradient = torch.randn_like(given)
        (by_given,) = torch.autograd.grad(found, given, gradient)
        assert torch.equal(
            by_given, (gradient * (1 / 0.7)).where(kept, torch.zeros((), dtype=dtype))
        )

    def test_of_a_view(self) -> None:
        """Heads are transposed before their weights are dropped in some models."""
        given = torch.randn(4, 6, requires_grad=True)
        torch.manual_seed(3)
        found = quick(0.5)(given.T)
        torch.manual_seed(3)
        assert torch.equal(found, given.T * keep_bits(given.T, 0.5).ne(0) * 2)
        assert torch.autograd.grad(found.sum(), given)[0].shape == given.shape

    def test_the_same_again_where_activations_are_computed_anew(self) -> None:
        layer, given = quick(0.5), torch.randn(5, 8, requires_grad=True)
        torch.manual_seed(4)
        kept = layer(given)
        torch.manual_seed(4)
        again = torch.utils.checkpoint.checkpoint(layer, given, use_reentrant=False)
        assert torch.equal(again, kept)
        ones = torch.ones_like(given)
        first, second = (torch.autograd.grad(each, given, ones)[0] for each in (kept, again))
        assert torch.equal(first, second)

    @pytest.mark.parametrize("p", [0.0, 1.0])
    def test_all_or_none(self, p: float) -> None:
        given = torch.randn(5)
        assert torch.equal(quick(p)(given), given * (1 - p))

    def test_nothing_when_it_evaluates(self) -> None:
        given = torch.randn(5)
        assert quick(0.5).eval()(given) is given

    def test_what_it_cannot_drop_is_dropped_by_torch(self) -> None:
        given = torch.ones(1000, dtype=torch.float64)
        torch.manual_seed(1)
        found = quick(0.5)(given)
        torch.manual_seed(1)
        assert torch.equal(found, torch.nn.functional.dropout(given, 0.5))


@pytest.mark.parametrize(("free", "quick"), [(None, True), (False, False)])
def test_the_train_stage_takes_the_quick_ones(
    make_job: Callable[..., Job], monkeypatch: pytest.MonkeyPatch, free: bool | None, quick: bool
) -> None:
    """GPT-2's activation, too; but where what the Trainer computes is asked for."""
    used = set()
    for kind in (cpu_dropout._FastDropout, fused_gelu._FusedGELU):
        forward = kind.forward

        def noted(self: Any, given: torch.Tensor, forward: Any = forward) -> Any:
            used.add(type(self))
            return forward(self, given)

        monkeypatch.setattr(kind, "forward", noted)
    run(make_job(max_steps=1, save_strategy="no", padding_free=free).request())
    assert used == ({cpu_dropout._FastDropout, fused_gelu._FusedGELU} if quick else set())


class TestChoice:
    @pytest.mark.parametrize(
        ("training", "device", "chosen"),
        [
            ({}, CPU, True),
            ({"padding_free": False}, CPU, False),
            ({"torch_compile": True}, CPU, False),
            ({}, torch.device("cuda"), False),
        ],
    )
    def test_where(self, training: dict[str, object], device: torch.device, chosen: bool) -> None:
        spec = JobSpec.model_validate(
            {
                "task": {"type": "causal-lm"},
                "model": {"name_or_path": "m"},
                "dataset": {"source": "upload", "train": "file-1"},
                "training": training,
            }
        )
        model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Dropout(0.1))
        shown, names = repr(model[0]), list(model.state_dict())
        build.install_fast_modules(model, spec, device)
        assert isinstance(model[1], cpu_dropout._FastDropout) == chosen
        assert (repr(model[0]), list(model.state_dict())) == (shown, names)
