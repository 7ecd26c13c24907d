"""ChatObjective: packed conversations give exactly what each of them gives alone."""

from collections.abc import Mapping
from types import SimpleNamespace
from typing import Any

import datasets
import pytest
import torch
import transformers

from service.contract.tasks.chat import ChatSpec
from worker.tasks.base import PreparedSplit
from worker.tasks.chat.objective import ChatObjective
from worker.training.kernels import padding_free
from worker.training.loss import chunked_cross_entropy
from worker.training.objective import Batch

Feature = Mapping[str, Any]
CONFIGS: dict[str, Any] = {
    "llama": transformers.LlamaConfig(
        vocab_size=50,
        hidden_size=16,
        intermediate_size=24,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=64,
    ),
    "gpt2": transformers.GPT2Config(
        vocab_size=50,
        n_embd=16,
        n_layer=2,
        n_head=2,
        n_positions=64,
        resid_pdrop=0,
        embd_pdrop=0,
        attn_pdrop=0,
    ),
}


def conversations(lengths: tuple[int, ...] = (9, 3, 5, 12), seed: int = 2) -> list[Feature]:
    draw = torch.Generator().manual_seed(seed)
    made: list[Feature] = []
    for length in lengths:
        trained = torch.randint(2, (length,), generator=draw)
        trained[-1] = 1
        ids = torch.randint(50, (length,), generator=draw)
        made.append({"input_ids": ids.tolist(), "trained": trained.tolist()})
    return made


def packed(rows: list[Feature]) -> Feature:
    joined = {name: [n for row in rows for n in row[name]] for name in ("input_ids", "trained")}
    return {**joined, "lengths": [len(row["input_ids"]) for row in rows]}


def made(name: str, *, free: bool, whole_logits: bool = False) -> tuple[ChatObjective, Any]:
    transformers.set_seed(1)
    model = transformers.AutoModelForCausalLM.from_config(CONFIGS[name])
    if free:
        assert padding_free.install(model) is not None
    linear = None if whole_logits else chunked_cross_entropy.plain_head(model)
    rows = datasets.Dataset.from_list(conversations())
    tokenizer = SimpleNamespace(pad_token_id=None, eos_token_id=7)
    split = PreparedSplit(rows, rows)
    return ChatObjective({"train": split}, model, tokenizer, ChatSpec(), linear), model


def naive(model: Any, rows: list[Feature], smoothing: float = 0.0) -> torch.Tensor:
    """Each conversation alone, with all of its logits."""
    total = torch.zeros(())
    for row in rows:
        ids, trained = torch.tensor([row["input_ids"]]), torch.tensor([row["trained"]]).bool()
        labels = ids.masked_fill(~trained, -100)
        total = total + torch.nn.functional.cross_entropy(
            model(ids, use_cache=False).logits[0, :-1],
            labels[0, 1:],
            reduction="sum",
            label_smoothing=smoothing,
        )
    return total


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {n: p.grad.clone() for n, p in model.named_parameters() if p.grad is not None}


@pytest.mark.parametrize("name", CONFIGS)
@pytest.mark.parametrize("free", [True, False], ids=["padding-free", "padded"])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
def test_loss_and_gradients_are_those_of_each_alone(
    name: str, free: bool, smoothing: float
) -> None:
    rows = conversations()
    objective, model = made(name, free=free)
    batch = objective.collate([packed(rows[:3]), packed(rows[3:])])
    loss = objective.smoothed(smoothing)(model, batch)
    found = gradients(model, loss)
    alone = naive(model, rows, smoothing)
    expected = gradients(model, alone)
    assert objective.item_count(batch) == sum(sum(row["trained"][1:]) for row in rows)
    assert loss.item() == pytest.approx(alone.item(), rel=1e-6)
    for weight, gradient in found.items():
        torch.testing.assert_close(gradient, expected[weight], rtol=1e-4, atol=1e-6)


def test_the_head_is_computed_for_trained_tokens_only(monkeypatch: pytest.MonkeyPatch) -> None:
    seen: list[torch.Size] = []
    original = chunked_cross_entropy.loss_sum

    def watched(linear: Any, head: Any, labels: Any, *rest: Any) -> torch.Tensor:
        seen.append(head.states.shape)
        return original(linear, head, labels, *rest)

    monkeypatch.setattr(chunked_cross_entropy, "loss_sum", watched)
    objective, model = made("llama", free=True)
    rows: list[Feature] = [
        {**row, "trained": [0] * (len(row["trained"]) - 8) + [1] * 8}
        for row in conversations((40, 30))
    ]
    objective.loss_sum(model, objective.collate([packed(rows)]))
    assert seen == [(1, 16, 16)]


def test_whole_logits_give_the_same() -> None:
    """As for a compiled model."""
    rows = [packed(conversations())]
    losses = []
    for whole in (False, True):
        objective, model = made("llama", free=not whole, whole_logits=whole)
        losses.append(objective.loss_sum(model, objective.collate(rows)).item())
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.parametrize("free", [True, False], ids=["padding-free", "padded"])
def test_no_conversation_sees_another(free: bool) -> None:
    """What the first one is taught is the same, whatever is in the second; within a conversation
    the same change is seen."""
    objective, model = made("llama", free=free)
    rows = conversations()
    other = [rows[0], *conversations(seed=7)[1:]]
    first = rows[0]["input_ids"]
    within = [{**rows[0], "input_ids": [49 - first[0], *first[1:]]}, *rows[1:]]

    def logits(given: list[Feature]) -> torch.Tensor:
        batch: Batch = objective.collate([packed(given)])
        with torch.no_grad():
            return objective.logits_and_labels(model, batch)[0]

    before, changed, seen = logits(rows), logits(other), logits(within)
    assert torch.equal(before[0, :8], changed[0, :8])
    assert not torch.allclose(before[0, 1:8], seen[0, 1:8])
    assert torch.equal(before[1, :2], seen[1, :2])


def test_a_share_of_a_batch() -> None:
    """Several processes split examples, whose conversations are of different number."""
    objective, model = made("llama", free=True)
    rows = conversations()
    examples = [packed(rows[:3]), packed(rows[3:])]
    whole = objective.collate(examples)
    share = objective.first_rows(whole, 1)
    assert objective.item_count(share) == objective.item_count(objective.collate(examples[:1]))
    loss = objective.loss_sum(model, share)
    assert loss.item() == pytest.approx(naive(model, rows[:3]).item(), rel=1e-6)
