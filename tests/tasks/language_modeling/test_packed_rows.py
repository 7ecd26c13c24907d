"""`packing: bfd` of causal-lm: whole rows in blocks; no row sees another."""

from itertools import chain, islice
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from service.contract.failures import FailureCode
from tests.tasks.language_modeling.conftest import TEXTS, Make
from tests.training.support.jobs import fails_with

LENGTH = 16


def packed_sequences(feature: dict[str, Any]) -> list[list[int]]:
    tokens = iter(feature["input_ids"])
    return [list(islice(tokens, length)) for length in feature["lengths"]]


def pieces(gpt2: Path, texts: list[str]) -> list[list[int]]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    rows = [tokenizer(text).input_ids for text in texts]
    return [row[at : at + LENGTH] for row in rows for at in range(0, len(row), LENGTH)]


class TestBlocks:
    def test_no_token_is_lost(self, make: Make, gpt2: Path) -> None:
        texts = ["".join(TEXTS[2:4]), "", *TEXTS]
        job = make(texts, block_size=LENGTH, packing="bfd")
        counts = job.prepare().splits["train"]
        features = list(job.splits["train"].features)
        expected = pieces(gpt2, texts)
        found = list(chain.from_iterable(map(packed_sequences, features)))
        assert sorted(found) == sorted(expected)
        assert all(sum(each["lengths"]) == len(each["input_ids"]) <= LENGTH for each in features)
        assert counts == {
            "examples": len(texts),
            "features": len(features),
            "tokens": sum(map(len, expected)),
            "dropped_tokens": 0,
            "sequences": len(expected),
            "continued_rows": 1,
        }
        assert counts["features"] < counts["sequences"]
        assert [file.name for file in job.prepared.prepared_dir.glob("train/*")].count(
            "features.unpacked"
        ) == 0

    def test_evaluation_is_of_each_row(self, make: Make, gpt2: Path, tmp_path: Path) -> None:
        job = make(block_size=LENGTH, packing="bfd", dataset={"validation": None})
        job.body["dataset"] |= {"validation": job.body["dataset"]["train"]}
        job.prepare()
        features = job.splits["validation"].features
        assert features["input_ids"] == [*map(list, pieces(gpt2, TEXTS))]
        assert features["row"] == [n for n, text in enumerate(TEXTS) if text]

    def test_only_empty_rows(self, make: Make) -> None:
        with fails_with(FailureCode.EMPTY_DATASET, "All rows of the train split are empty"):
            make(["", ""], block_size=LENGTH, packing="bfd").prepare()


class TestJob:
    def job(self, make: Make, **training: Any) -> Any:
        job = make(
            block_size=LENGTH,
            packing="bfd",
            training={"max_steps": 4, "per_device_train_batch_size": 4, **training},
        )
        job.body["dataset"] |= {"validation": job.body["dataset"]["train"]}
        return job

    def test_the_loss_is_that_of_each_row_alone(self, make: Make, gpt2: Path) -> None:
        options = {"learning_rate": 0.0, "train_sampling_strategy": "sequential", "max_steps": 1}
        job = self.job(make, **options)
        result, recorder = job.train()
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(gpt2).eval()
        features = job.splits["train"].features

        def naive(rows: list[list[int]]) -> float:
            losses = []
            for row in rows:
                ids = torch.tensor([row])
                with torch.no_grad():
                    logits = model(ids).logits[0, :-1]
                losses.append(
                    torch.nn.functional.cross_entropy(logits, ids[0, 1:], reduction="none")
                )
            return float(torch.cat(losses).mean())

        first = list(chain.from_iterable(packed_sequences(features[n]) for n in range(4)))
        assert recorder.train_values("loss")[1] == pytest.approx(naive(first), rel=1e-5)
        everything = pieces(gpt2, TEXTS)
        assert result.metrics["eval_loss"] == pytest.approx(naive(everything), rel=1e-5)

    def test_padding_free_trains_the_same(self, make: Make) -> None:
        padded = self.job(make).train()[1].train_values("loss")
        free = self.job(make, padding_free=True).train()[1].train_values("loss")
        assert list(free.values()) == pytest.approx(list(padded.values()), rel=1e-5)
        assert free[4] < free[1]

    def test_examples_are_blocks_and_tokens_are_real(self, make: Make) -> None:
        job = self.job(make, max_steps=-1, num_train_epochs=1)
        job.body["training"]["include_num_input_tokens_seen"] = "all"
        result, recorder = job.train()
        counts = job.prepared.splits["train"]
        examples = result.metrics["train_samples_per_second"] * result.metrics["train_runtime"]
        assert examples == pytest.approx(counts["features"])
        seen = list(recorder.train_values("num_input_tokens_seen").values())
        assert seen[-1] == counts["tokens"]
