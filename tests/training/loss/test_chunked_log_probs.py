"""worker.training.loss.chunked_log_probs against torch's log_softmax, with all gradients."""

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from worker.training.loss import chunked_cross_entropy, chunked_log_probs
from worker.training.loss.chunked_cross_entropy import IGNORED, HeadInput

TOKENS, HIDDEN, VOCABULARY = 33, 16, 50


def expected(linear: torch.nn.Linear, states: torch.Tensor, labels: torch.Tensor) -> torch.Tensor:
    logs = linear(states).float().log_softmax(dim=-1)
    found = logs.gather(1, labels.clamp(min=0)[:, None])[:, 0]
    return torch.where(labels == IGNORED, 0.0, found)


def inputs() -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """States, labels (some of them ignored), and a weight for each."""
    torch.manual_seed(0)
    labels = torch.randint(VOCABULARY, (TOKENS,))
    labels[3] = labels[-1] = IGNORED
    return torch.randn(TOKENS, HIDDEN, requires_grad=True), labels, torch.randn(TOKENS)


@pytest.mark.parametrize("numbers", [1, 7 * VOCABULARY, 1 << 24])
@pytest.mark.parametrize("bias", [False, True])
@pytest.mark.parametrize("trains_head", [False, True])
def test_is_torchs(
    monkeypatch: pytest.MonkeyPatch, numbers: int, bias: bool, trains_head: bool
) -> None:
    """In chunks of one token, of seven with a rest, and all at once."""
    monkeypatch.setattr(chunked_cross_entropy, "_CHUNK_NUMBERS", numbers)
    states, labels, weights = inputs()
    linear = torch.nn.Linear(HIDDEN, VOCABULARY, bias=bias).requires_grad_(trains_head)
    found = chunked_log_probs.of_labels(linear, HeadInput(states, torch.float32), labels)
    right = expected(linear, states, labels)
    torch.testing.assert_close(found, right, rtol=1e-6, atol=1e-6)
    variables = [states, *(linear.parameters() if trains_head else ())]
    gradients = [
        torch.autograd.grad((each.square() * weights).sum(), variables) for each in (found, right)
    ]
    for one, other in zip(*gradients, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("trains_head", [False, True])
def test_in_bfloat16_it_is_as_near_as_autocast(trains_head: bool) -> None:
    states, labels, weights = inputs()
    linear = torch.nn.Linear(HIDDEN, VOCABULARY).requires_grad_(trains_head)
    exact = torch.autograd.grad((expected(linear, states, labels) * weights).sum(), states)[0]
    with torch.autocast("cpu", torch.bfloat16):
        usual = torch.autograd.grad((expected(linear, states, labels) * weights).sum(), states)[0]
    found = chunked_log_probs.of_labels(linear, HeadInput(states, torch.bfloat16), labels)
    ours = torch.autograd.grad((found * weights).sum(), states)[0]
    assert (ours - exact).norm() < 1.5 * (usual - exact).norm()


def test_without_gradients_nothing_is_kept() -> None:
    states, labels, _ = inputs()
    linear = torch.nn.Linear(HIDDEN, VOCABULARY)
    with torch.no_grad():
        found = chunked_log_probs.of_labels(linear, HeadInput(states, torch.float32), labels)
    assert found.grad_fn is None
    torch.testing.assert_close(found, expected(linear, states, labels), rtol=1e-6, atol=1e-6)


class LargestTensor(TorchDispatchMode):
    """Records the size of the largest new tensor."""

    numel = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        made = func(*args, **(kwargs or {}))
        if isinstance(made, torch.Tensor):
            self.numel = max(self.numel, made.numel())
        return made


@pytest.mark.parametrize("trains_head", [False, True])
def test_the_logits_of_all_tokens_never_exist(
    monkeypatch: pytest.MonkeyPatch, trains_head: bool
) -> None:
    monkeypatch.setattr(chunked_cross_entropy, "_CHUNK_NUMBERS", 16 * 1000)
    states, labels = torch.randn(400, HIDDEN, requires_grad=True), torch.arange(400)
    linear = torch.nn.Linear(HIDDEN, 1000).requires_grad_(trains_head)
    with LargestTensor() as largest:
        head = HeadInput(states, torch.float32)
        chunked_log_probs.of_labels(linear, head, labels).sum().backward()
    assert 16 * 1000 <= largest.numel <= 4 * 16 * 1000
