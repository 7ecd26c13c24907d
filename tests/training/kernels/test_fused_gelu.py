"""worker.training.kernels.fused_gelu: the same values and gradients, in one kernel."""

import pytest
import torch
from transformers.activations import ACT2FN

from worker.training.kernels import fused_gelu


@pytest.mark.parametrize("name", ["gelu_new", "gelu_fast"])
def test_computes_the_same(name: str) -> None:
    plain, fused = ACT2FN[name], ACT2FN[name]
    fused_gelu.install(fused)
    assert type(fused) is not type(plain)
    given = torch.linspace(-6, 6, 1001, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(fused(given), plain(given), rtol=1e-9, atol=1e-9)
    by_fused, by_plain = (torch.autograd.grad(f(given).sum(), given)[0] for f in (fused, plain))
    torch.testing.assert_close(by_fused, by_plain, rtol=1e-9, atol=1e-9)


def test_others_stay() -> None:
    layer = torch.nn.Sequential(ACT2FN["gelu"], ACT2FN["quick_gelu"])
    before = [type(each) for each in layer]
    fused_gelu.install(layer)
    assert [type(each) for each in layer] == before
