"""Training on pairs, through the real stages: each number against a naive computation."""

import shutil
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForCausalLM, AutoTokenizer

from service.contract.stage.events import Notice, PhaseChanged
from service.contract.states import Phase
from tests.tasks.preference.support import job, pair
from tests.tasks.stages import assert_accumulates


def log_prob(model: Any, tokenizer: Any, row: dict[str, Any], side: str) -> torch.Tensor:
    """Sum over the answer's tokens, from the logits of one sequence alone."""
    asked = [{"role": "user", "content": row["prompt"]}]
    replied = [*asked, {"role": "assistant", "content": row[side]}]
    prompt = tokenizer.apply_chat_template(asked, add_generation_prompt=True)["input_ids"]
    whole = tokenizer.apply_chat_template(replied)["input_ids"]
    assert whole[: len(prompt)] == prompt
    ids = torch.tensor([whole])
    logs = model(ids).logits[0, :-1].log_softmax(dim=-1)
    found: torch.Tensor = logs.gather(1, ids[0, 1:, None])[len(prompt) - 1 :].sum()
    return found


def naive_dpo(folder: Path, steps: int, *, rate: float, beta: float) -> list[float]:
    """The losses of DPO on the first 12 pairs in order, four at a time."""
    model = AutoModelForCausalLM.from_pretrained(folder)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=0.0)
    rows = [pair(number) for number in range(12)]
    with torch.no_grad():
        known = [
            [log_prob(model, tokenizer, row, side) for side in ("chosen", "rejected")]
            for row in rows
        ]
    losses = []
    for step in range(steps):
        loss = torch.zeros(())
        for number in range(4 * step, 4 * step + 4):
            row, (chosen, rejected) = rows[number % 12], known[number % 12]
            good = log_prob(model, tokenizer, row, "chosen") - chosen
            bad = log_prob(model, tokenizer, row, "rejected") - rejected
            loss = loss - logsigmoid(beta * (good - bad)) / 4
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


IN_ORDER: dict[str, Any] = {
    "train_sampling_strategy": "sequential",
    "lr_scheduler_type": "constant",
}
LORA: dict[str, Any] = {"method": "lora", "target_modules": "all-linear", "r": 4}


@pytest.mark.parametrize("padding_free", [True, False])
def test_dpo_is_the_naive_computation(tmp_path: Path, padding_free: bool) -> None:
    """With `padding_free: true` a job that cannot be computed without padding fails."""
    staged = job(tmp_path, {"beta": 0.3}, padding_free=padding_free, **IN_ORDER)
    _, recorder = staged.train()
    expected = naive_dpo(tmp_path / "model", 4, rate=1e-3, beta=0.3)
    found = recorder.train_values("loss")
    assert [found[step] for step in (1, 2, 3, 4)] == pytest.approx(expected, rel=2e-5)


def test_what_is_logged_and_evaluated_has_trls_names(tmp_path: Path) -> None:
    staged = job(tmp_path, eval_strategy="steps", eval_steps=4, logging_steps=2)
    result, recorder = staged.train()
    names = ("rewards/chosen", "rewards/rejected", "rewards/accuracies", "rewards/margins")
    for name in (*names, "logps/chosen", "logps/rejected"):
        assert set(recorder.train_values(name)) == {2, 4}
        assert f"eval_{name}" in result.metrics
    assert result.baseline["eval_rewards/margins"] == 0
    assert result.baseline["eval_loss"] == pytest.approx(0.693147, abs=1e-6)
    margins = result.metrics["eval_rewards/chosen"] - result.metrics["eval_rewards/rejected"]
    assert result.metrics["eval_rewards/margins"] == pytest.approx(margins)
    assert result.metrics["eval_rewards/accuracies"] == 1.0
    texts = {name: result.samples[0][name] for name in ("prompt", "chosen", "rejected")}
    assert texts == pair(0)


def test_logged_values_are_means_since_the_last_log(tmp_path: Path) -> None:
    by_step = job(tmp_path, **IN_ORDER).train()[1]
    (tmp_path / "other").mkdir()
    both = job(tmp_path / "other", **{**IN_ORDER, "logging_steps": 2}).train()[1]
    for name in ("rewards/margins", "logps/chosen"):
        each, means = by_step.train_values(name), both.train_values(name)
        assert means[2] == pytest.approx((each[1] + each[2]) / 2)
        assert means[4] == pytest.approx((each[3] + each[4]) / 2)


def test_the_reference_is_computed_once(tmp_path: Path) -> None:
    """Other options of the loss, and a second attempt, read what the first job has computed."""
    staged = job(tmp_path)
    _, first = staged.train()
    phases = [event.phase for event in first.of(PhaseChanged)]
    assert phases[:2] == [Phase.LOADING, Phase.REFERENCE]
    assert not reuses(first)
    staged.body["task"] |= {"beta": 0.5, "loss_type": "ipo"}
    _, second = staged.train(attempt=3)
    assert reuses(second)
    assert second.train_values("logps/chosen")[1] == first.train_values("logps/chosen")[1]


def reuses(recorder: Any) -> bool:
    return any("Reusing the reference" in event.message for event in recorder.of(Notice))


def test_one_that_is_rounded_otherwise_is_not_reused(tmp_path: Path) -> None:
    """Noise on the embeddings is for training only, but its batches are padded."""
    staged = job(tmp_path)
    staged.train()
    staged.body["training"] |= {"neftune_noise_alpha": 1.0}
    _, second = staged.train(attempt=3)
    assert not reuses(second)


@pytest.mark.parametrize(
    "task", [{"loss_type": "simpo"}, {"loss_type": "orpo"}, {"reference": "none"}]
)
def test_losses_without_a_reference_have_no_such_phase(
    tmp_path: Path, task: dict[str, Any]
) -> None:
    _, recorder = job(tmp_path, task).train()
    assert Phase.REFERENCE not in [event.phase for event in recorder.of(PhaseChanged)]
    values = recorder.train_values("rewards/chosen")
    logs = recorder.train_values("logps/chosen")
    assert values[4] == pytest.approx(0.1 * logs[4])


def test_with_an_adapter_the_reference_is_the_base_model(tmp_path: Path) -> None:
    """Its log-probabilities are the same as without an adapter, to the bit."""
    plain, adapted = tmp_path / "plain", tmp_path / "adapted"
    for folder in (plain, adapted):
        folder.mkdir()
    whole = job(plain)
    lora = job(adapted)
    lora.body["peft"] = LORA
    assert whole.train()[0].metrics["train_samples"] == 12
    _, recorder = lora.train()
    assert abs(recorder.train_values("rewards/margins")[1]) < 1e-5
    found = [sorted((each / "cache" / "reference").glob("*/*.npy")) for each in (plain, adapted)]
    assert [file.name for file in found[0]] == ["train.npy", "validation.npy"]
    for one, other in zip(*found, strict=True):
        assert one.read_bytes() == other.read_bytes()


@pytest.mark.parametrize("loss_type", ["sigmoid", "orpo"])
def test_accumulated_batches_are_the_large_one(tmp_path: Path, loss_type: str) -> None:
    """Though their answers have other numbers of tokens, and an epoch's last step fewer of them."""
    make = partial(job, tmp_path, {"loss_type": loss_type}, **IN_ORDER)
    names = ("loss", "rewards/margins", "grad_norm")
    assert_accumulates(make, 8, 2, names, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize(
    ("adapter", "forgets"),
    [
        *((None, False), (LORA, True)),
        pytest.param(None, True, marks=pytest.mark.heavy),
        pytest.param(LORA, False, marks=pytest.mark.heavy),
    ],
)
def test_a_resumed_training_is_the_uninterrupted_one(
    tmp_path: Path, adapter: dict[str, Any] | None, forgets: bool
) -> None:
    """Also if the reference must be computed again, after the model was trained."""
    staged = job(tmp_path, logging_steps=2, save_steps=3, save_strategy="steps")
    staged.body["peft"] = adapter
    first, whole = staged.train()
    if forgets:
        shutil.rmtree(tmp_path / "cache" / "reference")
    second, resumed = staged.train(attempt=3, resume_from=staged.checkpoint(3))
    for name in ("loss", "rewards/margins", "logps/rejected"):
        assert resumed.train_values(name)[4] == whole.train_values(name)[4]
    assert reuses(resumed) is not forgets
    assert second.weights_sha256 == first.weights_sha256


def test_virtual_tokens_are_not_in_the_reference(tmp_path: Path) -> None:
    made = job(tmp_path, learning_rate=0.1, max_steps=6)
    made.body["peft"] = {"method": "prompt-tuning", "num_virtual_tokens": 4}
    _, recorder = made.train()
    found = recorder.train_values("loss")
    assert found[6] < found[1] != pytest.approx(0.6931, abs=1e-4)
