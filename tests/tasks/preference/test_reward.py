"""Reward models, through the real stages."""

from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn.functional import logsigmoid
from transformers import AutoModelForSequenceClassification, AutoTokenizer, pipeline

from service.contract.failures import StageError
from service.contract.stage.events import Notice
from service.contract.stage.stages import TrainResult
from service.contract.tasks.preference import RewardSpec
from tests.tasks.chat.support import turn
from tests.tasks.preference import support as preference
from tests.tasks.preference.support import pair
from tests.tasks.stages import StagedJob, assert_accumulates, job_of, write_rows
from worker.tasks.chat import templates
from worker.tasks.preference.reward import RewardObjective

IN_ORDER: dict[str, Any] = {"train_sampling_strategy": "sequential"}


def reward_job(folder: Path, task: dict[str, Any] | None = None, **training: Any) -> StagedJob:
    return preference.job(folder, {"type": "reward", **(task or {})}, **{**IN_ORDER, **training})


def text(tokenizer: Any, row: dict[str, Any], side: str) -> str:
    turns = [
        {"role": "user", "content": row["prompt"]},
        {"role": "assistant", "content": row[side]},
    ]
    whole: str = tokenizer.apply_chat_template(turns, tokenize=False)
    return whole


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> tuple[StagedJob, TrainResult, Any]:
    folder = tmp_path_factory.mktemp("reward")
    job = reward_job(folder, {"center_rewards_coefficient": 0.01}, learning_rate=1e-2, max_steps=9)
    return job, *job.train()


def test_the_finished_model_scores_as_transformers_does(trained: Any) -> None:
    """With the pipeline, from the saved files alone; in batches with padding as well."""
    job, result, _ = trained
    folder = str(job.output(result))
    score = pipeline("text-classification", model=folder, function_to_apply="none", batch_size=3)
    tokenizer = AutoTokenizer.from_pretrained(folder)
    rows = job.predictions()
    for side in ("chosen", "rejected"):
        found = score([text(tokenizer, pair(number), side) for number in range(5)])
        assert [each["label"] for each in found] == ["reward"] * 5
        expected = [row[f"{side}_reward"] for row in rows]
        assert [each["score"] for each in found] == pytest.approx(expected, abs=1e-5)


def test_batches_have_no_padding_though_the_tokenizer_has_no_pad_token(trained: Any) -> None:
    messages = [event.message for event in trained[2].of(Notice)]
    assert "Batches are computed without padding" in messages


def test_metrics_are_those_of_the_rewards(trained: Any) -> None:
    _, result, recorder = trained
    rows = trained[0].predictions()
    chosen = torch.tensor([row["chosen_reward"] for row in rows])
    rejected = torch.tensor([row["rejected_reward"] for row in rows])
    loss = 0.01 * (chosen + rejected) ** 2 - logsigmoid(chosen - rejected)
    metrics = result.metrics
    assert metrics["eval_loss"] == pytest.approx(loss.mean().item(), abs=1e-6)
    assert metrics["eval_margin"] == pytest.approx((chosen - rejected).mean().item(), abs=1e-6)
    assert metrics["eval_accuracy"] == 1.0
    assert metrics["eval_max_reward"] == pytest.approx(float(torch.maximum(chosen, rejected).max()))
    assert metrics["eval_min_reward"] <= metrics["eval_mean_reward"] <= metrics["eval_max_reward"]
    assert set(recorder.train_values("accuracy")) == set(range(1, 10))
    losses = recorder.train_values("loss")
    assert losses[9] < losses[1]


def differences(folder: Path, numbers: range) -> torch.Tensor:
    """(pairs,) of the rewards before the training: the job's seed draws the new head."""
    torch.manual_seed(42)
    model = AutoModelForSequenceClassification.from_pretrained(folder / "model", num_labels=1)
    tokenizer = AutoTokenizer.from_pretrained(folder / "model")

    def reward(row: dict[str, Any], side: str) -> torch.Tensor:
        ids = tokenizer(text(tokenizer, row, side), return_tensors="pt")["input_ids"]
        logits: torch.Tensor = model(ids).logits
        return logits[0, 0]

    with torch.no_grad():
        found = [reward(pair(n), "chosen") - reward(pair(n), "rejected") for n in numbers]
    return torch.stack(found)


@pytest.mark.parametrize("padding_free", [True, False])
def test_the_loss_is_bradley_and_terrys(tmp_path: Path, padding_free: bool) -> None:
    job = reward_job(tmp_path, max_steps=1, padding_free=padding_free)
    _, recorder = job.train()
    expected = -logsigmoid(differences(tmp_path, range(4))).mean().item()
    assert recorder.train_values("loss")[1] == pytest.approx(expected, rel=1e-5)


class TestMargins:
    """`-logsigmoid(rewards_chosen - rewards_rejected - inputs["margin"]).mean()` of TRL's
    RewardTrainer.compute_loss, in trainings and evaluations; what is logged is without it."""

    def job(self, folder: Path, margins: list[Any], **training: Any) -> StagedJob:
        job = reward_job(folder, **training)
        for split in ("train", "validation"):
            rows = [{**pair(n), "margin": margins[n % len(margins)]} for n in range(6)]
            job.body["dataset"][split] = write_rows(folder / f"{split}.jsonl", rows)
        return job

    @pytest.mark.parametrize(
        "batches",
        [
            {"per_device_train_batch_size": 4, "per_device_eval_batch_size": 6},
            {"per_device_train_batch_size": 2, "gradient_accumulation_steps": 2},
        ],
    )
    def test_are_subtracted_in_the_loss(self, tmp_path: Path, batches: dict[str, Any]) -> None:
        margins: list[Any] = [0.5, 2, -1.25, "3.5", 0.0, 1e-3]
        job = self.job(tmp_path, margins, max_steps=1, eval_on_start=True, **batches)
        _, recorder = job.train()
        found = differences(tmp_path, range(6))
        losses = -logsigmoid(found - torch.tensor([float(margin) for margin in margins]))
        assert recorder.train_values("loss")[1] == pytest.approx(losses[:4].mean().item(), rel=1e-5)
        assert recorder.train_values("margin")[1] == pytest.approx(
            found[:4].mean().item(), abs=1e-6
        )
        before = recorder.evaluations()[0]
        assert before["eval_loss"] == pytest.approx(losses.mean().item(), rel=1e-5)
        assert before["eval_margin"] == pytest.approx(found.mean().item(), abs=1e-6)

    def test_part_of_a_batch_keeps_its_own(self, tmp_path: Path) -> None:
        objective = RewardObjective(RewardSpec(), 0, {})
        features: list[Any] = [
            {"input_ids": [5, 6, 7], "lengths": [2, 1], "margin": margin} for margin in (1.0, 2.0)
        ]
        batch = objective.collate(features)
        assert batch["margin"].tolist() == [1.0, 2.0]
        cut = objective.first_rows(batch, 1)
        assert (cut["margin"].tolist(), len(cut["input_ids"])) == ([1.0], 2)
        assert "margin" not in objective.collate([{**each, "margin": None} for each in features])

    def test_every_row_has_one_or_none_has(self, tmp_path: Path) -> None:
        with pytest.raises(StageError, match="line 2: has no `margin`, but earlier rows have one"):
            self.job(tmp_path, [0.5, None]).prepare()


def test_predictions_score_any_answer(trained: Any, tmp_path: Path) -> None:
    job, result, _ = trained
    row = pair(0)
    turns = [
        {"role": "user", "content": row["prompt"]},
        {"role": "assistant", "content": row["chosen"]},
    ]
    rows = [
        {"messages": turns},
        {"prompt": row["prompt"], "completion": row["rejected"]},
        {"prompt": row["prompt"], "chosen": row["chosen"], "rejected": row["rejected"]},
    ]
    options = {"bf16": False, "per_device_eval_batch_size": 2}
    test = {"test": rows}
    other = job_of(tmp_path, "reward", job.output(result), test, options, mode="predict")
    other.train()
    found = other.predictions("test/predictions.json")
    known = job.predictions()[0]
    assert found[0] == {"row": 1, "reward": pytest.approx(known["chosen_reward"], abs=1e-5)}
    assert found[1] == {"row": 2, "reward": pytest.approx(known["rejected_reward"], abs=1e-5)}
    assert found[2]["chosen_reward"] == pytest.approx(known["chosen_reward"], abs=1e-5)


def test_accumulated_batches_are_the_large_one(tmp_path: Path) -> None:
    names = ("loss", "margin", "grad_norm")
    assert_accumulates(partial(reward_job, tmp_path), 4, 1, names, rel=1e-4, abs=1e-6)


def test_a_tokenizer_must_have_a_token_to_pad_with(tmp_path: Path) -> None:
    job = reward_job(tmp_path)
    tokenizer = AutoTokenizer.from_pretrained(tmp_path / "model")
    tokenizer.eos_token = None
    tokenizer.save_pretrained(tmp_path / "model")
    with pytest.raises(StageError, match="neither a pad token nor an EOS token"):
        job.prepare()


def test_the_template_of_the_job_is_saved_with_the_model(tmp_path: Path) -> None:
    job = reward_job(tmp_path, {"chat_template": "zephyr"}, max_steps=1)
    folder = job.output(job.train()[0])
    assert AutoTokenizer.from_pretrained(folder).chat_template == templates.read("zephyr")
    model = AutoModelForSequenceClassification.from_pretrained(folder).eval()
    tokenizer: Any = AutoTokenizer.from_pretrained(folder)
    turns = [turn("user", pair(0)["prompt"]), turn("assistant", pair(0)["chosen"])]
    encoded = tokenizer.apply_chat_template(turns, return_dict=True, return_tensors="pt")
    with torch.no_grad():
        reward = model(**encoded).logits[0, 0].item()
    assert reward == pytest.approx(job.predictions()[0]["chosen_reward"], abs=1e-5)
