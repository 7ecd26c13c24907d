"""worker.tasks.chat.chat: features, their length, packing, and whole jobs."""

import math
from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from service.contract.failures import FailureCode
from service.contract.stage.events import Notice
from service.contract.tasks.chat import ChatSpec
from tests.support.models import CHATML, save_tiny_llama
from tests.tasks.chat.jobs import ROWS, Row, chat_job, notices, talk
from tests.tasks.stages import StagedJob
from tests.training.support.jobs import Killed, Recorder, at_checkpoint, fails_with
from worker.tasks.chat import templates
from worker.tasks.chat.chat import Chat


def features(job: StagedJob, split: str = "train") -> list[dict[str, Any]]:
    return list(job.splits[split].features)


def sequences(feature: dict[str, Any], name: str = "input_ids") -> list[list[int]]:
    values = iter(feature[name])
    return [list(islice(values, length)) for length in feature["lengths"]]


def rendered(rows: list[Row], model: Path) -> list[list[int]]:
    tokenizer: Any = transformers.AutoTokenizer.from_pretrained(model)
    return [tokenizer.apply_chat_template(row["messages"], return_dict=False) for row in rows]


class TestFeatures:
    def test_are_what_transformers_renders(self, tmp_path: Path) -> None:
        job = chat_job(tmp_path / "job")
        counts = job.prepare().splits["train"]
        whole = rendered(ROWS, tmp_path / "job" / "llama")
        found = features(job)
        assert [each["input_ids"] for each in found] == whole
        trained = [sum(each["trained"]) for each in found]
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path / "job" / "llama")
        answers = [f"{row['messages'][1]['content']}<|im_end|>" for row in ROWS]
        assert trained == [len(tokenizer(answer).input_ids) for answer in answers]
        assert counts == {
            "examples": len(ROWS),
            "features": len(ROWS),
            "tokens": sum(map(len, whole)),
            "trained_tokens": sum(trained),
            "dropped_tokens": 0,
            "truncated_rows": 0,
            "max_length": max(map(len, whole)),
        }

    def test_longer_rows_are_cut_and_counted(self, tmp_path: Path) -> None:
        job = chat_job(tmp_path / "job", max_length=46)
        counts = job.prepare().splits["train"]
        whole = rendered(ROWS, tmp_path / "job" / "llama")
        over = [len(row) - 46 for row in whole if len(row) > 46]
        assert over
        assert [each["input_ids"] for each in features(job)] == [row[:46] for row in whole]
        assert (counts["truncated_rows"], counts["dropped_tokens"]) == (len(over), sum(over))
        (message,) = [each for each in notices(job) if each.startswith("train split")]
        assert f"`task.max_length` 46: {len(over)} rows longer than that are cut" in message

    def test_the_length_is_chosen_from_the_training_rows(self, tmp_path: Path) -> None:
        long = talk("the report of the board", "was read " * 40)
        splits = {"validation": [long, *ROWS[:3]]}
        job = chat_job(tmp_path / "job", splits=splits)
        job.prepare()
        longest = max(map(len, rendered(ROWS, tmp_path / "job" / "llama")))
        chosen = f"`task.max_length` is {longest}, chosen from the training rows"
        assert any(chosen in notice for notice in notices(job))
        assert len(features(job, "validation")[0]["input_ids"]) == longest

    def test_validation_rows_that_are_cut_before_their_answer(self, tmp_path: Path) -> None:
        long = talk("the report of the water board " * 8, "was read")
        job = chat_job(tmp_path / "job", splits={"validation": [ROWS[0], long]}, max_length=None)
        job.prepare()
        messages = [each for each in notices(job) if "train no token" in each]
        assert messages
        assert "1 of 2 rows of the validation split" in messages[0]
        assert "(rows 2)" in messages[0]
        result, _ = job.train()
        assert math.isfinite(result.metrics["eval_loss"])

    def test_a_training_row_that_is_cut_before_its_answer(self, tmp_path: Path) -> None:
        long = talk("the report of the water board " * 8, "was read")
        with fails_with(FailureCode.UNREADABLE_ROW, r"line 2: the row trains no token within"):
            chat_job(tmp_path / "job", [ROWS[0], long], max_length=32).prepare()

    @pytest.mark.parametrize("train_on", ["assistant", "last", "all"])
    def test_turns_that_are_trained_without_their_thinking_are_counted(
        self, tmp_path: Path, train_on: str
    ) -> None:
        """qwen3 shows it after the last question only."""
        first = {"role": "assistant", "content": "4", "reasoning_content": "Two and two."}
        inline = {"role": "assistant", "content": "<think>\nOf three.\n</think>\n\n6"}
        last = {"role": "assistant", "content": "8", "reasoning_content": "Four."}
        untrained = first | {"weight": 0}
        plain = {"role": "assistant", "content": "5"}
        ask = {"role": "user", "content": "And then?"}
        talks: list[list[dict[str, Any]]] = [
            [ask, first, ask, inline, ask, last],
            [ask, inline],
            [ask, untrained, ask, plain],
        ]
        rows: list[Row] = [{"messages": turns} for turns in talks]
        job = chat_job(tmp_path / "job", rows, chat_template="qwen3", train_on=train_on)
        job.prepare()
        data = [each.data for each in job.notices if isinstance(each, Notice)]
        found = [each for each in data if "turns_without_thinking" in each]
        lost = {"split": "train", "turns_without_thinking": 2, "rows": 1}
        assert found == ([] if train_on == "last" else [lost])

    def test_of_a_tokenizer_whose_template_was_edited(self, tmp_path: Path) -> None:
        """They are not those that an earlier job prepared."""
        job = chat_job(tmp_path / "job")
        first = job.prepare()
        folder = tmp_path / "job" / "llama"
        tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
        tokenizer.chat_template = CHATML.replace("<|im_start|>", "<|im_start|>the ")
        tokenizer.save_pretrained(folder)
        before = features(job)[0]["input_ids"]
        del job.prepared  # as another job, with the same cache
        again = job.prepare()
        assert first.prepared_dir != again.prepared_dir
        assert len(features(job)[0]["input_ids"]) > len(before)

    def test_a_template_of_ours_is_known_by_its_text(self) -> None:
        """Another release may have another one under the name."""
        settings = Chat().tokenization_settings(ChatSpec(chat_template="chatml"))
        assert settings["chat_template"] == templates.read("chatml")
        own = ChatSpec(chat_template="{{ messages }}")
        assert Chat().tokenization_settings(own)["chat_template"] == "{{ messages }}"


class TestPacking:
    def test_no_token_is_lost(self, tmp_path: Path) -> None:
        job = chat_job(tmp_path / "job", packing="bfd")
        counts = job.prepare().splits["train"]
        found = features(job)
        packed = list(chain.from_iterable(map(sequences, found)))
        assert sorted(packed) == sorted(rendered(ROWS, tmp_path / "job" / "llama"))
        assert counts["features"] == len(found) < len(ROWS)
        assert counts["max_length"] == 128  # what the model takes
        assert all(len(each["input_ids"]) <= 128 for each in found)
        assert f"are packed into {len(found)} examples of at most 128" in " ".join(notices(job))

    def test_each_keeps_its_trained_tokens(self, tmp_path: Path) -> None:
        alone = chat_job(tmp_path / "alone")
        alone.prepare()
        expected = {tuple(each["input_ids"]): each["trained"] for each in features(alone)}
        packed = chat_job(tmp_path / "packed", packing="bfd")
        packed.prepare()
        for feature in features(packed):
            for ids, trained in zip(sequences(feature), sequences(feature, "trained"), strict=True):
                assert expected[tuple(ids)] == trained

    def test_rows_of_other_splits_are_not_packed(self, tmp_path: Path) -> None:
        job = chat_job(tmp_path / "job", packing="bfd", splits={"validation": ROWS[:5]})
        counts = job.prepare().splits["validation"]
        assert counts["features"] == 5
        assert "lengths" not in features(job, "validation")[0]


class TestJob:
    def pairs(self) -> list[Row]:
        """Rows of two lengths by turns; two of them always fill an example."""
        made = []
        for number in range(20):
            made.append(talk(f"the report {number % 10} of the board", "was read by all"))
            made.append(talk(f"the water {number % 10}", "was there"))
        return made

    def test_packed_trains_as_unpacked(self, tmp_path: Path) -> None:
        """The same sequences in each step."""
        rows, sequential = self.pairs(), {"train_sampling_strategy": "sequential"}
        unpacked = chat_job(tmp_path / "a", rows, {**sequential})
        unpacked.prepare()
        lengths = [len(each["input_ids"]) for each in features(unpacked)]
        assert len(set(lengths)) == 2
        options = {**sequential, "per_device_train_batch_size": 2, "padding_free": True}
        packed = chat_job(tmp_path / "b", rows, options, packing="bfd", max_length=sum(lengths[:2]))
        losses = [job.train()[1].train_values("loss") for job in (unpacked, packed)]
        assert [each["lengths"] for each in features(packed)] == [lengths[:2]] * 20
        assert list(losses[1].values()) == pytest.approx(list(losses[0].values()), rel=1e-5)
        assert losses[0][5] < losses[0][1]

    @pytest.mark.parametrize("free", [True, False])
    def test_reports_that_packing_saves_nothing(self, tmp_path: Path, free: bool) -> None:
        options = {"max_steps": 1, "padding_free": free}
        _, recorder = chat_job(tmp_path / "job", training=options, packing="bfd").train()
        messages = [each.message for each in recorder.of(Notice) if "padding_free" in each.data]
        expected = (
            "Batches are computed without padding" if free else "`task.packing` saves neither"
        )
        assert [message.startswith(expected) for message in messages] == [True]

    def test_scores_of_each_row(self, tmp_path: Path) -> None:
        job = chat_job(tmp_path / "job", splits={"test": ROWS[:6]})
        result, _ = job.train()
        output = job.output(result)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(output)
        rows = job.predictions("test/predictions.json")
        for number, (row, feature) in enumerate(zip(rows, features(job, "test"), strict=True)):
            ids = torch.tensor([feature["input_ids"]])
            labels = ids.masked_fill(torch.tensor([feature["trained"]]) == 0, -100)
            with torch.no_grad():
                found = model(ids, labels=labels)
            asked = labels[0, 1:] != -100
            right = (found.logits[0, :-1].argmax(-1) == ids[0, 1:])[asked].double().mean()
            assert row == {
                "row": number + 1,
                "tokens": int(asked.sum()),
                "loss": pytest.approx(float(found.loss), rel=1e-5),
                "perplexity": pytest.approx(math.exp(float(found.loss)), rel=1e-4),
                "accuracy": pytest.approx(float(right)),
            }
        total = sum(row["tokens"] for row in rows)
        mean = sum(row["loss"] * row["tokens"] for row in rows) / total
        assert result.metrics["test_loss"] == pytest.approx(mean, rel=1e-5)

    def test_test_rows_without_an_answer_are_not_scored(self, tmp_path: Path) -> None:
        waiting = talk("the report of the board")
        job = chat_job(tmp_path / "job", splits={"test": [waiting, ROWS[0]]})
        result, _ = job.train()
        rows = job.predictions("test/predictions.json")
        assert rows[0] == {"row": 1}
        assert rows[1]["loss"] == pytest.approx(result.metrics["test_loss"])

    def test_resumed_bit_for_bit(self, tmp_path: Path) -> None:
        model = save_tiny_llama(tmp_path / "llama")
        packed: dict[str, Any] = {"packing": "bfd", "model": model}
        options = {"save_steps": 2, "per_device_train_batch_size": 2, "padding_free": True}
        whole, expected = chat_job(tmp_path / "whole", training=options, **packed).train()
        job = chat_job(tmp_path / "job", training=options, **packed)
        with pytest.raises(Killed):
            job.train(2, recorder=Recorder(kill_after=at_checkpoint(2)))
        resumed, recorder = job.train(3, resume_from=job.checkpoint(2))
        assert resumed.weights_sha256 == whole.weights_sha256
        losses = expected.train_values("loss")
        assert recorder.train_values("loss") == {step: losses[step] for step in (3, 4, 5)}

    def test_an_adapter_on_weights_of_eight_bits(self, tmp_path: Path) -> None:
        """Without padding, and nearly as on whole weights."""
        losses: list[list[float]] = []
        for quantization in ({}, {"quantization": {"bits": 8}}):
            home = tmp_path / str(len(losses))
            job = chat_job(home, training={"padding_free": True, "max_steps": 3}, packing="bfd")
            job.body["peft"] = {"method": "lora", "r": 4, **quantization}
            losses.append(list(job.train()[1].train_values("loss").values()))
        assert losses[0] != losses[1]
        assert losses[0] == pytest.approx(losses[1], rel=1e-3)

    @pytest.mark.parametrize(
        ("options", "other"),
        [
            ({"activation_checkpointing": True}, {}),
            ({"padding_free": True}, {}),
            pytest.param(
                {"torch_compile": True, "torch_compile_backend": "eager"},
                {},
                marks=pytest.mark.heavy,  # 4 s
            ),
            (
                {"label_smoothing_factor": 0.1, "gradient_accumulation_steps": 2},
                {"label_smoothing_factor": 0.1, "per_device_train_batch_size": 4},
            ),
        ],
        ids=["activation checkpointing", "padding-free", "compiled", "accumulation"],
    )
    def test_same_numbers(
        self, tmp_path: Path, options: dict[str, Any], other: dict[str, Any]
    ) -> None:
        """Two ways to compute the same training on packed examples."""
        kept = {"per_device_train_batch_size": 2, "max_steps": 3, "num_train_epochs": 3}
        found = [
            chat_job(tmp_path / str(n), ROWS * 3, {**kept, **given}, packing="bfd").train()[1]
            for n, given in enumerate([options, other])
        ]
        losses = [list(each.train_values("loss").values()) for each in found]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
        assert losses[0][2] < losses[0][0]
