"""worker.tasks.language_modeling.causal_lm: blocks, data, and whole jobs."""

import json
import math
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
import transformers

from service.contract.failures import FailureCode, StageError
from tests.tasks.language_modeling.conftest import TEXTS, Make
from tests.tasks.stages import StagedJob, write_rows
from tests.training.support.jobs import Killed, Recorder, at_checkpoint, fails_with
from worker.training.loss import chunked_cross_entropy


def tokens_of(job: StagedJob, split: str = "train") -> list[list[int]]:
    return list(job.splits[split].features["input_ids"])


def flat(parts: list[list[int]]) -> list[int]:
    return list(chain.from_iterable(parts))


def expected_tokens(gpt2: Path, texts: list[str]) -> list[int]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
    return [token for text in texts for token in tokenizer(text).input_ids]


class TestBlocks:
    def test_rows_are_joined_and_what_is_dropped_is_reported(self, make: Make, gpt2: Path) -> None:
        job = make(block_size=10)
        counts = job.prepare().splits["train"]
        everything = expected_tokens(gpt2, TEXTS)
        blocks, dropped = divmod(len(everything), 10)
        assert dropped > 0
        assert counts == {
            "examples": len(TEXTS),
            "features": blocks,
            "tokens": len(everything),
            "dropped_tokens": dropped,
        }
        assert flat(tokens_of(job)) == everything[: blocks * 10]
        notice = next(n for n in job.notices if getattr(n, "data", {}).get("dropped_tokens"))
        assert notice.data == {
            "split": "train",
            "dropped_tokens": dropped,
            "tokens": len(everything),
        }
        assert notice.message == (
            f"{dropped} of {len(everything)} tokens of the train split are not used: they do not "
            "fill a block of 10"
        )

    def test_more_rows_than_are_tokenised_at_once(self, make: Make, gpt2: Path) -> None:
        texts = [f"{number} the report\n" for number in range(2100)]
        job = make(texts, block_size=64)
        job.prepare()
        everything = expected_tokens(gpt2, texts)
        assert flat(tokens_of(job)) == everything[: len(everything) // 64 * 64]

    def test_the_default_block_is_the_models_limit(self, make: Make) -> None:
        job = make()
        job.prepare()
        assert {len(block) for block in tokens_of(job)} == {64}

    def test_and_at_most_1024(self, make: Make, tmp_path: Path, gpt2: Path) -> None:
        long = tmp_path / "long"
        config = transformers.LlamaConfig(
            vocab_size=300,
            hidden_size=16,
            intermediate_size=16,
            num_hidden_layers=1,
            num_attention_heads=2,
            max_position_embeddings=4096,
        )
        transformers.LlamaForCausalLM(config).save_pretrained(long)
        tokenizer = transformers.AutoTokenizer.from_pretrained(gpt2)
        tokenizer.model_max_length = 10**30
        tokenizer.save_pretrained(long)
        job = make(TEXTS * 8, model=long)
        job.prepare()
        assert {len(block) for block in tokens_of(job)} == {1024}

    def test_longer_than_the_position_table(self, make: Make) -> None:
        with fails_with(FailureCode.SEQUENCE_TOO_LONG, r"`block_size` is 65, but .* holds 64"):
            make(block_size=65).prepare()

    def test_less_text_than_one_block(self, make: Make, gpt2: Path) -> None:
        text = ["the report\n"]
        with fails_with(FailureCode.EMPTY_DATASET, "fewer than one block of 64") as raised:
            make(text).prepare()
        tokens = len(expected_tokens(gpt2, text))
        assert raised.value.failure.details == {"split": "train", "tokens": tokens}


class TestData:
    def test_every_format_gives_the_same_tokens(
        self, make: Make, gpt2: Path, tmp_path: Path
    ) -> None:
        (tmp_path / "a.txt").write_text("".join(TEXTS).replace("\n", "\r\n"), newline="")
        pq.write_table(pa.table({"body": TEXTS}), tmp_path / "a.parquet")
        rows = "".join(f'"{text}"\n' for text in TEXTS)
        (tmp_path / "a.csv").write_text(f"body\n{rows}")
        write_rows(tmp_path / "a.jsonl", [{"body": text} for text in TEXTS])
        everything = expected_tokens(gpt2, TEXTS)
        for name in ("a.txt", "a.parquet", "a.csv", "a.jsonl"):
            column = {} if name == "a.txt" else {"text_column": "body"}
            job = make(dataset={"train": str(tmp_path / name)}, block_size=8, **column)
            job.prepare()
            assert flat(tokens_of(job)) == everything[: len(everything) // 8 * 8], name

    def test_without_line_breaks(self, make: Make, gpt2: Path, tmp_path: Path) -> None:
        (tmp_path / "a.txt").write_text("".join(TEXTS))
        dataset = {"train": str(tmp_path / "a.txt")}
        job = make(dataset=dataset, block_size=8, keep_linebreaks=False)
        job.prepare()
        bare = expected_tokens(gpt2, [text.rstrip("\n") for text in TEXTS])
        assert flat(tokens_of(job)) == bare[: len(bare) // 8 * 8]

    def test_a_row_that_is_not_text(self, make: Make, tmp_path: Path) -> None:
        data = write_rows(tmp_path / "a.jsonl", [{"text": "the report"}, {"text": 5}])
        with pytest.raises(StageError, match=r"a.jsonl, line 2: `text` must be text, not int"):
            make(dataset={"train": data}).prepare()


class TestJob:
    def job(self, make: Make, tmp_path: Path, **training: Any) -> StagedJob:
        validation = write_rows(tmp_path / "v.jsonl", [{"text": text} for text in TEXTS[:20]])
        test = write_rows(tmp_path / "t.jsonl", [{"text": text} for text in TEXTS[3:12]])
        return make(
            block_size=16,
            dataset={"validation": validation, "test": test},
            training={"per_device_train_batch_size": 4, "max_steps": 10, **training},
        )

    def test_predictions_of_the_test_split(self, make: Make, tmp_path: Path) -> None:
        job = self.job(make, tmp_path)
        result, _ = job.train()
        rows = job.predictions("test/predictions.json")
        assert len(rows) == job.prepared.splits["test"]["features"]
        model = transformers.AutoModelForCausalLM.from_pretrained(job.output(result))
        for number, (row, tokens) in enumerate(zip(rows, tokens_of(job, "test"), strict=True)):
            ids = torch.tensor([tokens])
            with torch.no_grad():
                output = model(ids, labels=ids)
            right = (output.logits[0, :-1].argmax(-1) == ids[0, 1:]).double().mean()
            assert row == {
                "block": number,
                "tokens": 15,
                "loss": pytest.approx(float(output.loss), rel=1e-5),
                "perplexity": pytest.approx(math.exp(float(output.loss)), rel=1e-4),
                "accuracy": pytest.approx(float(right)),
            }

    @pytest.mark.parametrize("separate", [False, True])
    def test_samples(self, make: Make, tmp_path: Path, separate: bool) -> None:
        """The beginning of a block, how it went on, and what the finished model makes of it."""
        job = self.job(make, tmp_path, per_device_eval_batch_size=2)
        job.body["task"] |= {"separate_documents": separate}
        result, _ = job.train()
        output = job.output(result)
        model: Any = transformers.AutoModelForCausalLM.from_pretrained(output)
        tokenizer = transformers.AutoTokenizer.from_pretrained(output)
        blocks = tokens_of(job, "validation")
        assert [sample["block"] for sample in result.samples] == [0, 3, 7]
        for sample in result.samples:
            prompt = tokenizer(sample["prompt"], return_tensors="pt").input_ids
            begin = prompt.shape[1]
            assert 2 <= begin <= 8
            whole = sample["prompt"] + sample["reference"]
            assert whole in tokenizer.decode(blocks[sample["block"]])
            written = model.generate(
                prompt, do_sample=False, min_new_tokens=begin, max_new_tokens=begin, pad_token_id=0
            )
            assert sample["prediction"] == tokenizer.decode(written[0, begin:])

    def test_resumed_where_the_gpu_has_other_memory_free(
        self, make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The loss is made in the parts that the training began with, the evaluations' as well."""
        chosen = chunked_cross_entropy.choose_chunk_rows
        made = chunked_cross_entropy.Chunks.for_vocabulary
        gpu = torch.device("cuda", 0)
        of_16_rows = 32 * 8 * 400 * 16
        free, rows = [of_16_rows], set()
        monkeypatch.setattr(chunked_cross_entropy, "_MIN_ROWS", 1)
        monkeypatch.setattr(torch.cuda, "mem_get_info", lambda _: (free[0], 1 << 40))
        for name in ("memory_reserved", "memory_allocated"):
            monkeypatch.setattr(torch.cuda, name, lambda _: 0)
        monkeypatch.setattr(
            chunked_cross_entropy,
            "choose_chunk_rows",
            lambda linear, _, paths: chosen(linear, gpu, paths),
        )
        monkeypatch.setattr(
            chunked_cross_entropy.Chunks,
            "for_vocabulary",
            lambda size, own: rows.add(own) or made(size, own),
        )
        whole, _ = self.job(make, tmp_path, save_steps=4).train()
        job = self.job(make, tmp_path, save_steps=4)
        job.prepare()
        with pytest.raises(Killed):
            job.train(2, recorder=Recorder(kill_after=at_checkpoint(4)))
        assert rows == {16}
        checkpoint = job.checkpoint(4)
        kept = json.loads((checkpoint / "progress.json").read_text())["fast_paths"]
        assert kept["rows_of_loss"] == 16
        free[0] *= 8
        resumed, _ = job.train(3, resume_from=checkpoint)
        assert rows == {16}
        assert resumed.weights_sha256 == whole.weights_sha256


@pytest.mark.parametrize(
    ("options", "adapter"),
    [
        ({}, None),
        ({"label_smoothing_factor": 0.2, "gradient_accumulation_steps": 2}, None),
        ({"bf16": True}, None),
        ({}, {"method": "lora", "r": 4}),
        ({}, {"method": "lora", "r": 4, "target_modules": ["c_attn", "lm_head"]}),
    ],
)
def test_the_loss_needs_no_logits_of_whole_batches(
    make: Make,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    adapter: dict[str, Any] | None,
) -> None:
    """The same training as with them; an adapter on the head takes them back."""
    seen: list[int] = []
    original = chunked_cross_entropy.loss_sum

    def counted(*arguments: Any) -> torch.Tensor:
        seen.append(1)
        return original(*arguments)

    monkeypatch.setattr(chunked_cross_entropy, "loss_sum", counted)
    runs = []
    for whole in (False, True):
        if whole:
            monkeypatch.setattr(chunked_cross_entropy, "plain_head", lambda _model: None)
        job = make(block_size=16, training={"max_steps": 3, "save_strategy": "no", **options})
        if adapter:
            job.body["peft"] = adapter
        runs.append(job.train()[1].train_values("loss"))
        adapted_head = adapter is not None and "target_modules" in adapter
        steps = 3 * options.get("gradient_accumulation_steps", 1)
        assert len(seen) == (0 if adapted_head else steps)
    rounding = 1e-3 if options.get("bf16") else 1e-5
    assert runs[0] == pytest.approx(runs[1], rel=rounding)
    assert runs[0][3] != runs[0][1]
