"""What a preview finds, for each task, with the code of `prepare`."""

import json
import math
from pathlib import Path
from typing import Any

import pytest

from service.cli.preview import page
from service.contract.interactive.previews import (
    MOST_CHARACTERS,
    MOST_SHOWN,
    PreviewOptions,
    PreviewResult,
)
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Finished
from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_llama
from tests.tasks.samples import CASES
from tests.tasks.stages import write_rows
from worker.stages.base import MAX_EVENT_BYTES
from worker.stages.preview import stage as preview


def previewed(
    home: Path, model: Path, task: Any, train: str | None, mode: str = "train", **given: Any
) -> dict[str, Any]:
    """The result for a spec with these training rows; `rows` is the limit, the rest `dataset`."""
    folder = home / "preview"
    folder.mkdir()
    rows, training = given.pop("rows", 1000), given.pop("training", {})
    spec = {
        "mode": mode,
        "task": task,
        "model": {"name_or_path": str(model)},
        "training": training,
        "dataset": {"source": "path", "train": train, **given},
    }
    request = StageRequest(
        job_id="preview",
        stage=Stage.PREPARE,
        epoch=1,
        attempt=1,
        spec=JobSpec.model_validate(spec),
        workspace=folder,
        attempt_dir=folder,
        cache_dir=home / "cache",
        data_roots=[Path("/")],
        model_roots=[Path("/")],
    )
    result = preview.preview_of(request, PreviewOptions(rows=rows, shown=2))
    return result.model_dump(mode="json", by_alias=True)


@pytest.fixture
def weightless(model: Path, tmp_path: Path) -> Path:
    """The tiny BERT with unreadable weights."""
    folder = tmp_path / "weightless"
    folder.mkdir()
    for file in model.iterdir():
        (folder / file.name).write_bytes(
            b"no weights" if file.suffix == ".safetensors" else file.read_bytes()
        )
    return folder


TARGETS = {
    "question-answering": "answer: was (tokens",
    "causal-lm": "each token, predicted from the tokens before it",
    "masked-lm": "15% of the tokens",
    "text-classification": "label",
    "summarization": "text: ",
    "translation": "text: ",
    "chat": "text: ",
    "preference": "chosen: ",
    "reward": "chosen: ",
}


LABELS_ALONE = {"question-answering", "text-classification", "reward"}


@pytest.mark.parametrize("case", CASES)
def test_every_task_shows_rows_lengths_and_two_examples(tmp_path: Path, case: str) -> None:
    parameters, save, row = CASES[case]
    kind = case.partition("/")[0]
    train = write_rows(tmp_path / "train.jsonl", [row(number) for number in range(12)])
    found = previewed(tmp_path, save(tmp_path / "model"), {"type": kind, **parameters}, train)
    assert found["failure"] is None
    split = found["splits"]["train"]
    assert (split["rows_read"], split["rows_usable"], split["rows_bad"]) == (12, 12, 0)
    assert 0 < split["tokens"]["p50"] <= split["tokens"]["p95"] <= split["tokens"]["max"]
    assert len(found["examples"]) == 2
    assert (split["is_whole"], split["rows_estimated"]) == (True, 12)
    epoch = found["epoch"]
    assert (epoch["is_exact"], epoch["rows"], epoch["features"]) == (True, 12, split["features"])
    assert epoch["optimizer_steps"] == math.ceil(split["features"] / 8)
    assert epoch["trained_tokens"] == split["trained_tokens"]
    assert (split["trained_tokens"] is None) == (kind in LABELS_ALONE)
    for example in found["examples"]:
        assert len(example["tokens"]) == example["length"] <= found["max_length"]
        if kind == "token-classification":
            assert len(example["target"]) == len(example["tokens"])
        else:
            assert example["target"].startswith(TARGETS[kind])


@pytest.mark.parametrize("case", ["question-answering", "text-classification", "summarization"])
def test_rows_to_predict_have_no_target(tmp_path: Path, case: str) -> None:
    """Their features have placeholders, which would look like labels."""
    parameters, save, row = CASES[case]
    model = save(tmp_path / "model")
    if case == "text-classification":
        config = json.loads((model / "config.json").read_text())
        config |= {"id2label": {0: "bad", 1: "good"}, "label2id": {"bad": 0, "good": 1}}
        config["problem_type"] = "single_label_classification"
        (model / "config.json").write_text(json.dumps(config))
    labels = ("answers", "label", "summary")
    rows = [{name: value for name, value in row(1).items() if name not in labels}]
    test = write_rows(tmp_path / "test.jsonl", rows)
    task = {"type": case, **parameters}
    found = previewed(tmp_path, model, task, None, test=test, mode="predict")
    assert found["failure"] is None
    (example,) = found["examples"]
    assert (example["split"], example["target"]) == ("test", "none, the row is predicted")


class TestClassification:
    TASK = "text-classification"

    def test_labels_tokens_and_truncation(self, tmp_path: Path, weightless: Path) -> None:
        rows = [{"text": "the board", "label": "good"}, {"text": "the board " * 20, "label": "bad"}]
        train = write_rows(tmp_path / "train.jsonl", rows)
        task = {"type": self.TASK, "max_seq_length": 8}
        found = previewed(tmp_path, weightless, task, train)
        assert (found["max_length"], found["length_option"]) == (8, "max_seq_length")
        assert found["splits"]["train"]["truncated"] == 1
        assert found["splits"]["train"]["tokens"]["max"] == 42
        first, second = found["examples"]
        assert first["tokens"] == ["[CLS]", "the", "board", "[SEP]"]
        assert [first["target"], second["target"]] == ["label: good", "label: bad"]
        assert found["unknown_tokens"] == 0

    def test_what_is_inferred_and_rows_of_each_label(
        self, tmp_path: Path, weightless: Path
    ) -> None:
        rows = [{"text": f"{n}", "label": [n % 2, 0, 1]} for n in range(6)]
        train = write_rows(tmp_path / "train.jsonl", rows)
        found = previewed(tmp_path, weightless, self.TASK, train)
        assert found["splits"]["train"]["labels"] == {"2": 6, "0": 3}
        assert [each["target"] for each in found["examples"]] == ["labels: 2", "labels: 0, 2"]
        notices = [
            "Inferred `task.label_format: vector`: all lists have 3 entries, 0 or 1",
            "Inferred `task.problem_type: multi_label_classification`: the labels are lists",
            "Inferred `task.label_names: [0, 1, 2]`: the places in the vectors; rows of each: 0 3, "
            "1 0, 2 6",
            "None of the first rows of the train split has the label '1', so the model does not "
            "learn it: add rows that have it, or train without it",
        ]
        assert found["notices"] == notices
        assert "  labels: 2 6, 0 3" in [*page._summary(found)]

    def test_rows_of_each_label_that_the_validation_has_and_the_training_lacks(
        self, tmp_path: Path, weightless: Path
    ) -> None:
        def rows(name: str, numbers: dict[str, int]) -> str:
            made = [{"text": "a", "label": label} for label, n in numbers.items() for _ in range(n)]
            return write_rows(tmp_path / name, made)

        task = {"type": self.TASK, "label_names": ["good", "bad", "odd"]}
        train = rows("train.jsonl", {"good": 3, "bad": 1})
        found = previewed(
            tmp_path, weightless, task, train, validation=rows("v.jsonl", {"odd": 2, "good": 1})
        )
        assert found["splits"]["validation"]["labels"] == {"odd": 2, "good": 1}
        assert found["notices"][1:] == [
            "Of the first rows of the train split so many have each label: good 3, bad 1, odd 0",
            "None of the first rows of the train split has the label 'odd', so the model does not "
            "learn it: add rows that have it, or train without it",
            "Only one of the first rows of the train split has the label 'bad': that teaches "
            "little",
            "Of the first rows of the validation split so many have each label: good 1, bad 0, "
            "odd 2",
            "2 of the first rows of the validation split have the label 'odd', which none of the "
            "first rows of the train split has: to the metrics they are rows that the model gets "
            "wrong",
        ]

    def test_a_metric_that_the_labels_do_not_have(self, tmp_path: Path, weightless: Path) -> None:
        rows = [{"text": "a", "label": "good"}, {"text": "b", "label": "bad"}]
        file = write_rows(tmp_path / "rows.jsonl", rows)
        training = {"eval_strategy": "epoch", "metric_for_best_model": "f1_micro"}
        given: dict[str, Any] = {"training": training, "validation": file}
        found = previewed(tmp_path, weightless, self.TASK, file, **given)
        assert found["failure"]["message"] == (
            "`training.metric_for_best_model` is `f1_micro`, but the evaluation reports only: "
            "accuracy, f1, f1_macro, f1_weighted, loss, matthews_correlation"
        )
        assert len(found["examples"]) == 2
        (tmp_path / "preview").rename(tmp_path / "first")
        part = previewed(tmp_path, weightless, self.TASK, file, rows=1, **given)
        assert part["failure"] is None or "f1_micro" not in part["failure"]["message"]

    def test_bad_rows_are_the_failure_of_a_job_and_the_others_are_shown(
        self, tmp_path: Path, weightless: Path
    ) -> None:
        rows = [
            {"text": "Grüße", "label": 0},
            {"text": "", "label": 1},
            {"text": "机器", "label": 1},
        ]
        train = write_rows(tmp_path / "rows.jsonl", rows)
        found = previewed(tmp_path, weightless, self.TASK, train)
        assert found["failure"]["code"] == "unreadable_row"
        assert "rows.jsonl, line 2" in found["failure"]["message"]
        assert found["failure"]["action"]
        split = found["splits"]["train"]
        assert (split["rows_usable"], split["bad_by_reason"]) == (2, {"empty_text": 1})
        assert [row["place"] for row in split["bad_rows"]] == ["rows.jsonl, line 2"]
        assert [example["target"] for example in found["examples"]] == ["label: 0", "label: 1"]
        assert found["unknown_tokens"] > 0

    def test_a_missing_column_is_the_failure_of_a_job(
        self, tmp_path: Path, weightless: Path
    ) -> None:
        train = write_rows(
            tmp_path / "train.jsonl", [{"txt": "a", "url": "b", "site": "c", "label": 1}]
        )
        found = previewed(tmp_path, weightless, self.TASK, train)
        assert found["failure"]["code"] == "missing_column"
        assert "Did you mean 'txt'" in found["failure"]["message"]
        assert (found["splits"], found["examples"]) == ({}, [])


def test_examples_are_left_out_until_the_rest_travels_as_one_event() -> None:
    """Bytes count: in most scripts a text has more bytes than characters."""
    text = "किताब " * 3000
    example = {"split": "train", "text": text, "tokens": [text], "length": 1}
    example |= {"trained": None, "target": text}
    found = {"rows_limit": 1, "examples": [example] * MOST_SHOWN}
    result = preview.bounded(PreviewResult.model_validate(found))
    line = Finished(result=result.model_dump(mode="json")).model_dump_json().encode()
    assert 0 < len(result.examples) < MOST_SHOWN
    assert result.notices == [
        "Fewer examples are shown than were asked for: all of them have more than 768 KiB"
    ]
    assert result.is_small()
    assert MAX_EVENT_BYTES / 2 < len(line) < MAX_EVENT_BYTES


def test_a_long_target_is_cut(tmp_path: Path) -> None:
    parameters, save, _ = CASES["summarization"]
    rows = [{"text": "the board", "summary": "the board " * 3000}]
    train = write_rows(tmp_path / "train.jsonl", rows)
    task = {"type": "summarization", **parameters, "max_target_length": 9000}
    found = previewed(tmp_path, save(tmp_path / "model"), task, train)
    target = found["examples"][0]["target"]
    assert target.startswith("text: ")
    assert target.endswith("…")
    assert len(target) == MOST_CHARACTERS + 1


class TestTrained:
    def test_of_a_block_all_but_the_first_token(self, tmp_path: Path) -> None:
        parameters, save, row = CASES["causal-lm"]
        train = write_rows(tmp_path / "train.jsonl", [row(number) for number in range(12)])
        task = {"type": "causal-lm", **parameters}
        found = previewed(tmp_path, save(tmp_path / "model"), task, train)
        split = found["splits"]["train"]
        assert split["trained_tokens"] == split["features"] * 7
        for example in found["examples"]:
            (span,) = example["trained"]
            assert (span["start"], span["end"]) == (1, 8)
            assert example["text"][: span["text_start"]] == example["tokens"][0]
            assert span["text_end"] == len(example["text"])

    @pytest.mark.parametrize("option", [{"separate_documents": True}, {"packing": "bfd"}])
    def test_of_separate_documents_none_of_the_first_tokens(
        self, tmp_path: Path, option: dict[str, Any]
    ) -> None:
        train = write_rows(tmp_path / "train.jsonl", [{"text": "a b"}] * 12)
        task = {"type": "causal-lm", "block_size": 24, **option}
        found = previewed(tmp_path, save_tiny_gpt2(tmp_path / "model"), task, train)
        for example in found["examples"]:
            spans = [(span["start"], span["end"]) for span in example["trained"]]
            size = found["splits"]["train"]["tokens"]["max"]
            assert spans == [(at + 1, at + size) for at in range(0, example["length"], size)]

    def test_of_words_with_tags_the_first_token(self, tmp_path: Path, model: Path) -> None:
        rows = [{"tokens": ["unbelievably", "London"], "tags": ["O", "B-LOC"]}] * 2
        train = write_rows(tmp_path / "train.jsonl", rows)
        found = previewed(tmp_path, model, "token-classification", train)
        example = found["examples"][0]
        shown = [
            example["text"][span["text_start"] : span["text_end"]].strip()
            for span in example["trained"]
        ]
        assert shown == ["u", "london"]
        pairs = list(zip(example["tokens"], example["target"], strict=True))
        assert [pair for pair in pairs if pair[1]] == [("u", "O"), ("london", "B-LOC")]
        assert (pairs[0], pairs[-1]) == (("[CLS]", None), ("[SEP]", None))
        assert found["splits"]["train"]["trained_tokens"] == 4

    def test_of_masked_tokens_the_share_that_is_masked(self, tmp_path: Path) -> None:
        _, save, row = CASES["masked-lm"]
        train = write_rows(tmp_path / "train.jsonl", [row(number) for number in range(12)])
        task = {"type": "masked-lm", "max_seq_length": 16, "mlm_probability": 0.5}
        found = previewed(tmp_path, save(tmp_path / "model"), task, train)
        split = found["splits"]["train"]
        assert split["trained_tokens"] == pytest.approx(split["features"] * 7, rel=0.05)
        assert found["examples"][0]["trained"] is None

    def test_of_texts_to_write_the_target(self, tmp_path: Path) -> None:
        parameters, save, row = CASES["summarization"]
        train = write_rows(tmp_path / "train.jsonl", [row(0)] * 3)
        task = {"type": "summarization", **parameters}
        split = previewed(tmp_path, save(tmp_path / "model"), task, train)["splits"]["train"]
        assert split["trained_tokens"] == min(split["target_tokens"]["total"], 3 * 8)


class TestChat:
    ROWS = (
        [("user", "the report"), ("assistant", "of the board")],
        [("user", "all"), ("assistant", "read"), ("user", "who"), ("assistant", "by all")],
        [("user", "nobody")],
    )

    def preview(self, home: Path, **task: Any) -> dict[str, Any]:
        rows = [
            {"messages": [{"role": role, "content": text} for role, text in turns]}
            for turns in self.ROWS
        ]
        train = write_rows(home / "train.jsonl", rows)
        model = save_tiny_llama(home / "model")
        task = {"type": "chat", **task}
        return previewed(home, model, task, train, on_bad_row="skip", max_bad_fraction=0.5)

    @pytest.mark.parametrize("packing", ["off", "bfd"])
    def test_the_answers_are_trained(self, tmp_path: Path, packing: str) -> None:
        found = self.preview(tmp_path, packing=packing)
        answers = [
            [example["text"][span["text_start"] : span["text_end"]] for span in example["trained"]]
            for example in found["examples"]
        ]
        wanted = [f"{text}<|im_end|>" for turns in self.ROWS for _, text in turns[1::2]]
        assert sorted(answer for shown in answers for answer in shown) == sorted(wanted)
        trained = sum(
            span["end"] - span["start"]
            for example in found["examples"]
            for span in example["trained"]
        )
        split = found["splits"]["train"]
        assert split["trained_tokens"] == found["epoch"]["trained_tokens"] == trained
        assert split["features"] == found["epoch"]["features"] == (2 if packing == "off" else 1)

    def test_a_row_without_an_answer_is_named(self, tmp_path: Path) -> None:
        split = self.preview(tmp_path)["splits"]["train"]
        assert (split["rows_usable"], split["rows_bad"]) == (2, 1)
        assert split["bad_rows"][0]["place"] == "train.jsonl, line 3"

    def test_the_length_is_that_of_the_features(self, tmp_path: Path) -> None:
        """Chosen from the rows, not the limit of the model."""
        found = self.preview(tmp_path)
        assert found["max_length"] == max(example["length"] for example in found["examples"])
        assert any("`task.max_length` is" in notice for notice in found["notices"])


class TestExtent:
    """What follows for an epoch from a part of the rows."""

    def preview(self, home: Path, model: Path, **given: Any) -> dict[str, Any]:
        rows = [{"text": "the board", "label": number % 2} for number in range(50)]
        train = write_rows(home / "train.jsonl", rows)
        return previewed(home, model, "text-classification", train, **given)

    def test_more_rows_are_estimated_from_the_file(self, tmp_path: Path, weightless: Path) -> None:
        found = self.preview(tmp_path, weightless, rows=10)
        split, epoch = found["splits"]["train"], found["epoch"]
        assert (split["is_whole"], split["rows_estimated"], split["features"]) == (False, 50, 10)
        assert split["rows_read"] == 10
        assert (epoch["is_exact"], epoch["features"], epoch["optimizer_steps"]) == (False, 50, 7)

    def test_the_job_s_own_limit_counts(self, tmp_path: Path, weightless: Path) -> None:
        found = self.preview(tmp_path, weightless, rows=10, max_train_samples=20)
        assert found["splits"]["train"]["rows_estimated"] == 20

    def test_a_limit_below_the_preview_s_is_all_of_them(
        self, tmp_path: Path, weightless: Path
    ) -> None:
        found = self.preview(tmp_path, weightless, rows=10, max_train_samples=5)
        split = found["splits"]["train"]
        assert (split["is_whole"], split["rows_read"], found["epoch"]["rows"]) == (True, 5, 5)

    def test_bad_rows_that_are_skipped_are_not_read_without_end(
        self, tmp_path: Path, weightless: Path
    ) -> None:
        rows = [{"text": "the board" if number < 5 else ""} for number in range(500)]
        labelled = [{**row, "label": number % 2} for number, row in enumerate(rows)]
        train = write_rows(tmp_path / "train.jsonl", labelled)
        skipping: dict[str, Any] = {"on_bad_row": "skip", "max_bad_fraction": 0.99}
        task = "text-classification"
        found = previewed(tmp_path, weightless, task, train, rows=10, **skipping)
        split = found["splits"]["train"]
        assert (split["rows_usable"], split["rows_read"]) == (5, 100)
        assert (split["is_whole"], split["rows_estimated"]) == (False, 500)

    def test_rows_held_out_are_counted(self, tmp_path: Path, weightless: Path) -> None:
        found = self.preview(tmp_path, weightless, rows=10, validation_split_percentage=20)
        estimated = [found["splits"][name]["rows_estimated"] for name in ("train", "validation")]
        assert estimated == [40, 10]


def test_what_is_inferred_and_not_used_is_shown_once(tmp_path: Path) -> None:
    rows = [{"tokens": ["the", "board"], "pos_tags": [0, 1], "ner_tags": [n, 1]} for n in (0, 1)]
    train = write_rows(tmp_path / "train.jsonl", rows)
    model = save_tiny_bert(tmp_path / "model")
    found = previewed(tmp_path, model, "token-classification", train)
    begins = ("Inferred `dataset.columns.tags: ner_tags`", "The column `pos_tags` is not used")
    assert found["failure"] is None
    assert [sum(n.startswith(begin) for n in found["notices"]) for begin in begins] == [1, 1]


def test_the_template_of_the_tokenizer_is_shown(tmp_path: Path) -> None:
    turns = [{"role": "user", "content": "who?"}, {"role": "assistant", "content": "Ada"}]
    train = write_rows(tmp_path / "train.jsonl", [{"messages": turns, "system": "Be brief."}])
    model = save_tiny_llama(tmp_path / "model", positions=256)
    notices = previewed(tmp_path, model, "chat", train)["notices"]
    begins = ("Inferred `task.chat_template: default`", "The column `system` is not used")
    assert [sum(n.startswith(begin) for n in notices) for begin in begins] == [1, 1]
