"""worker.tasks.preference.tokenizing: the tokens of prompts with their answers."""

import json
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from service.contract.failures import StageError
from service.contract.stage.events import Notice
from service.contract.tasks.preference import PreferenceSpec
from tests.support.models import save_tiny_llama
from tests.tasks.preference.support import job, pair
from tests.tasks.stages import job_of, write_rows
from worker.data.table import RowError
from worker.tasks.preference.rows import RowCleaner
from worker.tasks.preference.tokenizing import RowTokenizer

END = "<|endoftext|>"


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = save_tiny_llama(tmp_path_factory.mktemp("llama"), positions=256)
    return AutoTokenizer.from_pretrained(folder)


@pytest.fixture
def bare(tokenizer: Any) -> Any:
    """Without a chat template."""
    template, tokenizer.chat_template = tokenizer.chat_template, None
    yield tokenizer
    tokenizer.chat_template = template


def encoded(tokenizer: Any, row: dict[str, Any], max_length: int = 256, **options: Any) -> Any:
    parameters = PreferenceSpec.model_validate(options)
    cleaned = RowCleaner("train", parameters)(row)
    return RowTokenizer(tokenizer, parameters, max_length)(cleaned)


def tokens(tokenizer: Any, row: dict[str, Any], max_length: int = 256, **options: Any) -> Any:
    found = encoded(tokenizer, row, max_length, **options)
    return [
        (tokenizer.decode(ids[: found["start"]]), tokenizer.decode(ids[found["start"] :]))
        for ids in found["input_ids"]
    ]


class TestTemplates:
    def test_an_answer_is_all_that_follows_the_prompt(self, tokenizer: Any) -> None:
        """As in TRL, with what the template writes after the turn."""
        prompt = "<|im_start|>user\nwho?<|im_end|>\n<|im_start|>assistant\n"
        row = {"prompt": "who?", "chosen": "the board", "rejected": "they"}
        assert tokens(tokenizer, row) == [
            (prompt, "the board<|im_end|>\n"),
            (prompt, "they<|im_end|>\n"),
        ]

    def test_one_may_be_named(self, bare: Any) -> None:
        (found, _) = tokens(bare, pair(0), chat_template="chatml")
        assert found[0].startswith("<|im_start|>user\n")

    def test_turns_need_one(self, bare: Any) -> None:
        row = {**pair(0), "prompt": [{"role": "user", "content": "who?"}]}
        with pytest.raises(StageError, match="chat template"):
            tokens(bare, row)


class TestJoinedTexts:
    def test_end_with_one_end_of_text_token(self, bare: Any) -> None:
        row = {"prompt": "the report", "chosen": " was read", "rejected": " was all"}
        expected = [("the report", f" was read{END}"), ("the report", f" was all{END}")]
        assert tokens(bare, row) == expected
        assert tokens(bare, {**row, "chosen": f" was read{END}"}) == expected

    def test_transcripts_are_joined_whatever_the_template(self, tokenizer: Any) -> None:
        row = {"chosen": "Human: who? Bot: Ada.", "rejected": "Human: who? Bot: Bob."}
        assert tokens(tokenizer, row) == [
            ("Human: who? Bot: ", f"Ada.{END}"),
            ("Human: who? Bot: ", f"Bob.{END}"),
        ]

    def test_the_job_reports_it(self, tmp_path: Path) -> None:
        staged = job(tmp_path)
        config = tmp_path / "model" / "tokenizer_config.json"
        (tmp_path / "model" / "chat_template.jinja").unlink(missing_ok=True)
        settings = json.loads(config.read_text())
        settings.pop("chat_template", None)
        config.write_text(json.dumps(settings))
        staged.train()
        messages = [event.message for event in staged.notices if isinstance(event, Notice)]
        assert any(
            "are joined as they are, with '<|endoftext|>' after them" in message
            for message in messages
        )


class TestLength:
    def test_a_row_must_train_a_token(self, tokenizer: Any) -> None:
        with pytest.raises(RowError, match="no token of an answer would be left") as caught:
            tokens(tokenizer, pair(0), max_length=12)
        assert caught.value.reason == "nothing_to_train"

    def test_it_is_what_nearly_all_rows_need(self, tmp_path: Path) -> None:
        staged = job(tmp_path)
        rows = [pair(number) for number in range(200)]
        rows[7]["chosen"] = "zq" * 90
        staged.body["dataset"]["train"] = write_rows(tmp_path / "train.jsonl", rows)
        staged.body["dataset"]["validation"] = write_rows(tmp_path / "long.jsonl", rows[7:9])
        prepared = staged.prepare()
        (notice,) = [
            event for event in staged.notices if "max_length" in getattr(event, "data", {})
        ]
        assert notice.data["truncated_rows"] == 1
        assert prepared.splits["train"]["max_length"] == notice.data["max_length"] < 256
        assert prepared.splits["train"]["dropped_tokens"] == notice.data["dropped_tokens"] > 0
        # An evaluation loses nothing.
        assert prepared.splits["validation"]["dropped_tokens"] == 0

    @pytest.mark.parametrize("loss_type", ["sigmoid", "kto"])
    def test_a_row_is_cut_once(self, tmp_path: Path, loss_type: str) -> None:
        """However many of its answers are. Those of other rows, for KTO's divergence, are not its
        own."""
        staged = job(tmp_path, {"max_length": 48, "loss_type": loss_type})
        short = {"prompt": "who?", "chosen": "all", "rejected": "the board"}
        long = {**short, "chosen": "zq" * 90, "rejected": "qz" * 80}
        staged.body["dataset"]["train"] = write_rows(
            tmp_path / "train.jsonl", [short, {**long, "rejected": "none"}, long, short]
        )
        prepared = staged.prepare()
        assert prepared.splits["train"]["truncated_rows"] == 2
        found = encoded(AutoTokenizer.from_pretrained(tmp_path / "model"), long)["input_ids"]
        chosen, rejected = (len(ids) - 48 for ids in found)
        assert prepared.splits["train"]["dropped_tokens"] == 2 * chosen + rejected
        assert prepared.data_report is not None
        measured = prepared.data_report["splits"]["train"]
        assert measured["truncated"] == 2
        assert sum(each["rows"] for each in measured["tokens"]["histogram"]) == 4

    def test_the_option_applies_everywhere(self, tmp_path: Path) -> None:
        prepared = job(tmp_path, {"max_length": 48}).prepare()
        lost = [prepared.splits[name]["dropped_tokens"] for name in ("train", "validation")]
        assert min(lost) > 0


def test_bad_rows_have_places(tmp_path: Path) -> None:
    staged = job(tmp_path)
    rows = [pair(0), {**pair(1), "rejected": ""}, {**pair(2), "prompt": "who? " * 200}, pair(3)]
    staged.body["dataset"]["train"] = write_rows(tmp_path / "train.jsonl", rows)
    with pytest.raises(StageError) as caught:
        staged.prepare()
    message = str(caught.value)
    assert "train.jsonl, line 2: rejected: " in message
    assert "train.jsonl, line 3: the prompt alone has" in message


class TestPredictions:
    @pytest.mark.parametrize("row", [{"prompt": "who?"}, {**pair(0), "prompt": "who?"}])
    def test_answer_the_prompt(self, tmp_path: Path, row: dict[str, Any]) -> None:
        task = {"type": "preference", "generate": {"max_new_tokens": 4}}
        model = save_tiny_llama(tmp_path / "model")
        test, options = {"test": [row]}, {"bf16": False}
        result, _ = job_of(tmp_path, task, model, test, options, mode="predict").train()
        (sample,) = result.samples
        assert sample["prompt"] == "who?"
        assert isinstance(sample["prediction"], str)

    def test_need_a_prompt_alone_but_trainings_compare(self, tmp_path: Path) -> None:
        staged = job(tmp_path)
        test = write_rows(tmp_path / "test.jsonl", [{"prompt": "who?"}])
        staged.body["dataset"]["test"] = test
        with pytest.raises(StageError, match="only `mode: predict` takes a prompt alone"):
            staged.prepare()
