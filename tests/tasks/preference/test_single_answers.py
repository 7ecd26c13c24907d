"""KTO, through the real stages: each number against a naive computation."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from service.contract.stage.events import Metric
from tests.tasks.preference.support import job, pair
from tests.tasks.stages import StagedJob, assert_accumulates, write_rows
from worker.tasks.base import load_splits

KTO = {"loss_type": "kto", "desirable_weight": 1.5, "beta": 0.3}
IN_ORDER: dict[str, Any] = {
    "train_sampling_strategy": "sequential",
    "lr_scheduler_type": "constant",
}


def answer(number: int) -> dict[str, Any]:
    row, good = pair(number), number % 3 > 0
    answer = row["chosen" if good else "rejected"]
    return {"prompt": row["prompt"], "completion": answer, "label": good}


ROWS = [answer(number) for number in range(12)]


def kto_job(folder: Path, **training: Any) -> StagedJob:
    made = job(folder, KTO, **{**IN_ORDER, **training})
    made.body["dataset"]["train"] = write_rows(folder / "train.jsonl", ROWS)
    made.body["dataset"]["validation"] = write_rows(folder / "validation.jsonl", ROWS[:6])
    return made


class Naive:
    """One sequence at a time, with all its logits."""

    def __init__(self, folder: Path) -> None:
        self.model = AutoModelForCausalLM.from_pretrained(folder)
        self._tokenizer: Any = AutoTokenizer.from_pretrained(folder)
        with torch.no_grad():
            self._known = [
                [self._log_prob(number, other) for other in (number, number - 1)]
                for number in range(12)
            ]

    def _log_prob(self, number: int, other: int) -> torch.Tensor:
        """Of the answer of row `other` after the prompt of row `number`."""
        (prompt, _), (start, whole) = self._tokens(number), self._tokens(other)
        ids = torch.tensor([prompt + whole[len(start) :]])
        logs = self.model(ids).logits[0, :-1].log_softmax(dim=-1)
        found: torch.Tensor = logs.gather(1, ids[0, 1:, None])[len(prompt) - 1 :].sum()
        return found

    def _tokens(self, number: int) -> tuple[list[int], list[int]]:
        row = ROWS[number]
        asked = [{"role": "user", "content": row["prompt"]}]
        replied = [*asked, {"role": "assistant", "content": row["completion"]}]
        render = self._tokenizer.apply_chat_template
        prompt: list[int] = render(asked, add_generation_prompt=True)["input_ids"]
        whole: list[int] = render(replied)["input_ids"]
        return prompt, whole

    def loss(self, numbers: list[int]) -> torch.Tensor:
        others = [self._log_prob(n, n - 1).detach() - self._known[n][1] for n in numbers]
        divergence = torch.stack(others).mean().clamp(min=0)
        losses = []
        for number in numbers:
            ratio = self._log_prob(number, number) - self._known[number][0]
            distance = 0.3 * (ratio - divergence)
            good = ROWS[number]["label"]
            losses.append(1.5 * (1 - distance.sigmoid()) if good else distance.sigmoid())
        return torch.stack(losses).mean()


@pytest.mark.parametrize("padding_free", [True, False])
def test_kto_is_the_naive_computation(tmp_path: Path, padding_free: bool) -> None:
    _, recorder = kto_job(tmp_path, padding_free=padding_free).train()
    naive = Naive(tmp_path / "model")
    optimizer = torch.optim.AdamW(naive.model.parameters(), lr=1e-3, weight_decay=0.0)
    found = recorder.train_values("loss")
    for step in range(4):
        first = 4 * step % 12
        loss = naive.loss(list(range(first, first + 4)))
        assert found[step + 1] == pytest.approx(loss.item(), rel=2e-5)
        loss.backward()
        torch.nn.utils.clip_grad_norm_(naive.model.parameters(), 1.0)
        optimizer.step()
        optimizer.zero_grad()


def test_an_answer_of_another_prompt_estimates_the_divergence(tmp_path: Path) -> None:
    """Of a pair it is not the other answer, which replies to the same prompt."""
    prepared = job(tmp_path, KTO).prepare()
    features = load_splits(prepared.prepared_dir)["train"].features
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    assert len(features) == 24
    for number, feature in enumerate(features):
        side = "rejected" if number % 2 else "chosen"
        row, before = pair(number // 2), pair((number // 2 - 1) % 12)
        other = str(tokenizer.decode(feature["input_ids"][feature["lengths"][0] :]))
        assert f"{row['prompt']}<|im_end|>" in other
        assert other.endswith(f"assistant\n{before[side]}<|im_end|>\n")


def test_the_divergence_is_that_of_the_whole_step(tmp_path: Path) -> None:
    """So that batches of any size give the same; it is above 0 with these answers."""
    names = ("loss", "grad_norm", "kl", "rewards/chosen", "logps/rejected")
    make = partial(kto_job, tmp_path, learning_rate=1e-2)
    whole = assert_accumulates(make, 4, 1, names, rel=1e-3, abs=1e-5)
    assert max(whole.train_values("kl").values()) > 0


def test_the_margin_is_the_difference_of_the_mean_rewards(tmp_path: Path) -> None:
    """Of the answers since the last log; as in TRL it is missing if these are of one kind."""
    # One answer a step: a bad one, then two good ones, and so on.
    options: dict[str, Any] = {"per_device_train_batch_size": 1, "max_steps": 6}
    recorder = kto_job(tmp_path, **options, logging_steps=3, learning_rate=1e-2).train()[1]
    good, bad = (recorder.train_values(f"rewards/{name}") for name in ("chosen", "rejected"))
    margins = recorder.train_values("rewards/margins")
    assert margins == {step: good[step] - bad[step] for step in (3, 6)}
    assert margins[6] != 0
    (tmp_path / "each").mkdir()
    each = kto_job(tmp_path / "each", **options).train()[1]
    logged = [event.values for event in each.of(Metric) if event.kind == "train"]
    assert ["rewards/chosen" in values for values in logged] == [False, True, True] * 2
    assert not any("rewards/margins" in values for values in logged)


def test_evaluations_do_not_depend_on_the_batch_size(tmp_path: Path) -> None:
    found = []
    for size in (1, 6):
        folder = tmp_path / str(size)
        folder.mkdir()
        result, _ = kto_job(folder, per_device_eval_batch_size=size, learning_rate=1e-2).train()
        names = ("loss", "kl", "rewards/chosen", "rewards/rejected", "rewards/margins")
        found.append([result.metrics[f"eval_{name}"] for name in names])
    assert found[0] == pytest.approx(found[1], rel=1e-4, abs=1e-6)
    assert found[0][-1] > 0


@pytest.mark.parametrize("pairs", [False, True])
def test_samples_show_their_texts(tmp_path: Path, pairs: bool) -> None:
    staged = job(tmp_path, KTO, max_steps=1) if pairs else kto_job(tmp_path, max_steps=1)
    result, _ = staged.train()
    assert len(result.samples) == 3
    for sample in result.samples:
        row = pair(sample["row"] - 1)
        answer = row["chosen" if sample["label"] else "rejected"].strip()
        assert (sample["prompt"], sample["completion"].strip()) == (row["prompt"], answer)
    assert {sample["label"] for sample in result.samples} == {True, False}


def test_a_resumed_training_is_the_uninterrupted_one(tmp_path: Path) -> None:
    staged = kto_job(tmp_path, logging_steps=2, save_steps=3, save_strategy="steps")
    whole = staged.train()[1]
    resumed = staged.train(attempt=3, resume_from=staged.checkpoint(3))[1]
    for name in ("loss", "rewards/chosen", "kl"):
        assert resumed.train_values(name)[4] == whole.train_values(name)[4]
