"""Tokenizers in Python: accepted for tasks that do not need the characters of a token."""

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from service.contract.failures import FailureCode
from tests.support.models import save_tiny_bert, save_tiny_ctrl
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import PLAIN, fails_with
from worker.stages.prepare.tokenizer_identity import tokenizer_identity

TEXTS = ["the report of the water board was read by all", "who were there in the morning"] * 12


@pytest.fixture(scope="module")
def ctrl(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_ctrl(tmp_path_factory.mktemp("models") / "ctrl")


def make(home: Path, model: Path, task: dict[str, Any], rows: list[dict[str, Any]]) -> StagedJob:
    return job_of(home, task, model, {"train": rows}, PLAIN | {"max_steps": 2})


class TestWhereAnyTokenizerWillDo:
    def test_causal_lm_trains(self, tmp_path: Path, ctrl: Path) -> None:
        task = {"type": "causal-lm", "block_size": 16}
        job = make(tmp_path, ctrl, task, [{"text": text} for text in TEXTS])
        trained, _ = job.train()
        tokenizer = AutoTokenizer.from_pretrained(ctrl)
        assert not tokenizer.is_fast
        tokens = [token for text in TEXTS for token in tokenizer(text)["input_ids"]]
        blocks = job.splits["train"].features["input_ids"]
        assert [token for block in blocks for token in block] == tokens[: len(tokens) // 16 * 16]
        again = AutoTokenizer.from_pretrained(job.output(trained))
        assert again(TEXTS[0])["input_ids"] == tokenizer(TEXTS[0])["input_ids"]

    def test_text_classification_cuts_and_counts(self, tmp_path: Path, ctrl: Path) -> None:
        slow = AutoTokenizer.from_pretrained(ctrl, pad_token="<unk>")
        folder = tmp_path / "padded"
        shutil.copytree(ctrl, folder)
        slow.save_pretrained(folder)
        task = {"type": "text-classification", "max_seq_length": 16}
        rows = [{"text": text, "label": str(n % 2)} for n, text in enumerate(TEXTS)]
        job = make(tmp_path, folder, task, [*rows, {"text": "the", "label": "0"}])
        report = job.prepare().data_report
        assert report is not None
        lengths = [len(slow(text)["input_ids"]) for text in [*TEXTS, "the"]]
        train = report["splits"]["train"]
        assert train["truncated"] == sum(length > 16 for length in lengths) == 24
        assert (train["tokens"]["max"], train["tokens"]["total"]) == (max(lengths), sum(lengths))


class TestWhereItMustBeFast:
    @pytest.mark.parametrize(
        ("task", "needs"),
        [
            ({"type": "question-answering"}, "which characters each token covers"),
            ({"type": "token-classification"}, "which word each token belongs to, and tags"),
            (
                {"type": "masked-lm", "whole_word_mask": True},
                "which word each token belongs to, which `task.whole_word_mask` needs",
            ),
        ],
    )
    def test_the_refusal_explains_why(
        self, tmp_path: Path, ctrl: Path, task: dict[str, Any], needs: str
    ) -> None:
        bert = save_tiny_bert(tmp_path / "bert")
        job = make(tmp_path, bert, task, [{"text": "x"}])
        job.body["model"]["tokenizer_name"] = str(ctrl)
        with fails_with(FailureCode.SLOW_TOKENIZER, r"CTRLTokenizer.* is a slow one") as caught:
            job.prepare()
        assert needs in caught.value.failure.message


class TestIdentity:
    def test_is_that_of_what_it_does_wherever_it_is(self, tmp_path: Path, ctrl: Path) -> None:
        shutil.copytree(ctrl, tmp_path / "copy")
        here, there = (AutoTokenizer.from_pretrained(f) for f in (ctrl, tmp_path / "copy"))
        assert tokenizer_identity(here) == tokenizer_identity(there)
        vocabulary = json.loads((tmp_path / "copy" / "vocab.json").read_text())
        vocabulary["of"], vocabulary["the"] = vocabulary["the"], vocabulary["of"]
        (tmp_path / "copy" / "vocab.json").write_text(json.dumps(vocabulary))
        other = AutoTokenizer.from_pretrained(tmp_path / "copy")
        assert tokenizer_identity(here) != tokenizer_identity(other)
        (tmp_path / "copy" / "merges.txt").write_text("#version: 0.2\nt h\n")
        merged = AutoTokenizer.from_pretrained(tmp_path / "copy")
        assert tokenizer_identity(merged) != tokenizer_identity(other)
