"""token-classification through the real prepare and train stages."""

import json
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from seqeval.metrics import accuracy_score, classification_report

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.contract.tasks.parameters import TokenClassificationSpec
from tests.support.models import minilm_dir, tiny_bert_config, train_tokenizer
from tests.tasks.classification.jobs import MakeJob, evaluations, maker
from tests.tasks.stages import StagedJob, assert_accumulates
from tests.training.support.jobs import fails_with
from worker.data.table import RowError
from worker.tasks.classification.token import TokenClassification, add_prefix_space, inside_of
from worker.tasks.classification.token_rows import RowCleaner

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "classification"
ROWS = [
    {"tokens": ["Ada", "wrote", "it", "in", "London"], "tags": ["B-PER", "O", "O", "O", "B-LOC"]},
    {"tokens": ["Charles", "Babbage", "did", "not"], "tags": ["B-PER", "I-PER", "O", "O"]},
    {"tokens": ["Nobody", "knows", "unbelievableness"], "tags": ["O", "O", "B-LOC"]},
    {"tokens": ["New", "York", "and", "Ada"], "tags": ["B-LOC", "I-LOC", "O", "B-PER"]},
]


@pytest.fixture
def make_job(tmp_path: Path, trainings: None) -> MakeJob:
    return maker(tmp_path / "home", "token-classification", tokens=30_522)


def features(job: StagedJob, split: str = "train") -> Any:
    return job.splits[split].features


class TestAlignment:
    """B-LOC, B-PER, I-LOC, I-PER, O are 0 … 4."""

    def test_the_first_token_of_each_word(self, make_job: MakeJob) -> None:
        row = features(make_job({"train": ROWS}))[2]
        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_dir())
        assert tokenizer.convert_ids_to_tokens(row["input_ids"]) == [
            "[CLS]",
            "nobody",
            "knows",
            "unbelievable",
            "##ness",
            "[SEP]",
        ]
        assert row["labels"] == [-100, 4, 4, 0, -100, -100]
        assert row["firsts"] == [1, 2, 3]

    def test_every_token_of_each_word(self, make_job: MakeJob) -> None:
        row = features(make_job({"train": ROWS}, task={"label_all_tokens": True}))[2]
        assert row["labels"] == [-100, 4, 4, 0, 2, -100]
        assert row["firsts"] == [1, 2, 3]

    def test_words_beyond_the_longest_are_left_out_and_reported(self, make_job: MakeJob) -> None:
        job = make_job({"train": ROWS}, task={"max_seq_length": 5})
        rows = features(job)
        assert rows[0]["firsts"] == [1, 2, 3, -1, -1]
        assert rows[0]["labels"] == [-100, 1, 4, 4, -100]
        notice = next(n for n in job.notices if isinstance(n, Notice) and "beyond" in n.message)
        assert notice.data == {"split": "train", "words": 5, "max_seq_length": 5}

    def test_words_without_a_token_are_counted_apart_from_those_that_are_cut(
        self, make_job: MakeJob
    ) -> None:
        nothing = ["\ufe0f", "\u200b", "\u00ad", ""]
        short = {"tokens": ["a", *nothing], "tags": ["O"] * 5}
        long = {"tokens": ["a", *nothing, "b", "c", "d", "e"], "tags": ["O"] * 9}
        job = make_job({"train": [*ROWS, short, long]}, task={"max_seq_length": 5})
        features(job)
        found = [n.data for n in job.notices if isinstance(n, Notice) and "words" in n.message]
        assert {"split": "train", "words_without_tokens": 8} in found
        # As above, and `d` and `e` of the last row.
        assert {"split": "train", "words": 7, "max_seq_length": 5} in found
        job = make_job({"train": [*ROWS, short]})
        features(job)
        assert not [n for n in job.notices if isinstance(n, Notice) and "beyond" in n.message]

    def test_words_of_byte_level_tokenizers_begin_with_their_space(self, tmp_path: Path) -> None:
        learnt = train_tokenizer(
            ["the report was written by Ada"] * 5,
            vocabulary=300,
            specials=["<s>", "<pad>", "</s>", "<unk>", "<mask>"],
            template="<s> $A </s>",
            pad_token="<pad>",
            unk_token="<unk>",
        )
        model = json.loads(learnt.backend_tokenizer.to_str())["model"]
        merges: Any = [tuple(merge) for merge in model["merges"]]
        tokenizer: Any = transformers.RobertaTokenizer(vocab=model["vocab"], merges=merges)

        def tokens() -> list[str]:
            ids = tokenizer([["the", "report"]], is_split_into_words=True)["input_ids"][0]
            return list(tokenizer.convert_ids_to_tokens(ids))

        assert tokens() == ["<s>", "the", "rep", "ort", "</s>"]
        add_prefix_space(tokenizer)
        assert tokens() == ["<s>", "Ġthe", "Ġreport", "</s>"]
        tokenizer.save_pretrained(tmp_path)
        tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
        assert tokens() == ["<s>", "Ġthe", "Ġreport", "</s>"]

    @pytest.mark.parametrize(
        ("tag", "inside"), [("B-LOC", "I-LOC"), ("I-LOC", "I-LOC"), ("O", "O"), ("BIG", "BIG")]
    )
    def test_inside_of(self, tag: str, inside: str) -> None:
        assert inside_of(tag) == inside

    def test_numbers_are_places_in_the_names(self, make_job: MakeJob) -> None:
        rows = [{"tokens": ["Ada", "wrote"], "tags": [1, 0]}]
        job = make_job({"train": rows}, task={"label_names": ["O", "B-PER"]})
        assert features(job)[0]["labels"] == [-100, 1, 0, -100]
        assert job.splits["train"].examples["tags"][0] == [
            "B-PER",
            "O",
        ]

    def test_a_csv_file_holds_lists_as_json(self, make_job: MakeJob, tmp_path: Path) -> None:
        path = tmp_path / "train.csv"
        path.write_text('tokens,tags\n"[""Ada"", ""wrote""]","[""B-PER"", ""O""]"\n')
        assert features(make_job({"train": path}))[0]["labels"] == [-100, 0, 1, -100]


class TestEvaluation:
    def test_numbers_are_those_of_seqeval_on_the_predictions_file(self, make_job: MakeJob) -> None:
        job = make_job({"train": ROWS * 8, "validation": ROWS}, max_steps=12, learning_rate=3e-2)
        result, _ = job.train()
        rows = job.predictions()
        golds, guesses = [row["tags"] for row in rows], [row["prediction"] for row in rows]
        assert golds == [row["tags"] for row in ROWS]
        report = classification_report(golds, guesses, output_dict=True, zero_division=0)
        metrics = result.metrics
        assert metrics["eval_f1"] > 0
        assert metrics["eval_f1"] == pytest.approx(report["micro avg"]["f1-score"], rel=1e-15)
        assert metrics["eval_precision"] == report["micro avg"]["precision"]
        assert metrics["eval_recall"] == report["micro avg"]["recall"]
        assert metrics["eval_accuracy"] == accuracy_score(golds, guesses)
        for type_ in ("PER", "LOC"):
            assert metrics[f"eval_{type_}_recall"] == report[type_]["recall"]
            assert metrics[f"eval_{type_}_number"] == report[type_]["support"] == 3

    def test_loss_and_predictions_are_the_models_own(self, make_job: MakeJob) -> None:
        job = make_job({"train": ROWS, "validation": ROWS}, dropout=0.0, learning_rate=0.0)
        result, recorder = job.train()
        output = job.output(result)
        model = transformers.AutoModelForTokenClassification.from_pretrained(output).eval()
        tokenizer = transformers.AutoTokenizer.from_pretrained(output)
        rows = job.splits["train"].features[:]
        batch = tokenizer.pad({"input_ids": rows["input_ids"]}, return_tensors="pt")
        longest = batch["input_ids"].shape[1]
        labels = np.full((4, longest), -100)
        for number, row in enumerate(rows["labels"]):
            labels[number, : len(row)] = row
        with torch.no_grad():
            found = model(**batch, labels=torch.from_numpy(labels))
        assert recorder.train_values("loss")[1] == pytest.approx(found.loss.item(), rel=1e-6)
        assert result.metrics["eval_loss"] == pytest.approx(found.loss.item(), rel=1e-6)
        likeliest = found.logits.argmax(-1).numpy()
        for number, prediction in enumerate(row["prediction"] for row in job.predictions()):
            ids = likeliest[number][labels[number] != -100]
            assert prediction == [model.config.id2label[int(class_id)] for class_id in ids]

    @pytest.mark.parametrize("side", ["left", "right"])
    def test_padding_on_either_side_leaves_words_their_tokens(
        self, make_job: MakeJob, tmp_path: Path, side: str
    ) -> None:
        job = make_job({"train": ROWS, "validation": ROWS})
        splits = job.splits
        tokenizer: Any = transformers.AutoTokenizer.from_pretrained(minilm_dir(), padding_side=side)
        config = tiny_bert_config(vocab_size=len(tokenizer))
        model = transformers.BertForTokenClassification(config)
        objective = TokenClassification().bind(
            JobSpec.model_validate(job.body), tokenizer, model, splits
        )

        def forward(features: Any, collate: Any, run: Any = None, **_: Any) -> Iterator[Any]:
            """A model that outputs for each token only its id, as a class of five."""
            batch = collate([features[index] for index in (2, 0, 1, 3)])
            assert batch["input_ids"][0, 0] == (101 if side == "right" else 0)
            logits = torch.nn.functional.one_hot(batch["input_ids"] % 5, 5).float()
            yield [2, 0, 1, 3], SimpleNamespace(logits=logits)

        evaluation = objective.evaluate("validation", forward, tmp_path)
        assert evaluation is not None
        names = ["B-LOC", "B-PER", "I-LOC", "I-PER", "O"]
        for row in json.loads(evaluation.files["predictions.json"].read_text()):
            firsts = [
                tokenizer.convert_tokens_to_ids(tokenizer.tokenize(w)[0]) for w in row["tokens"]
            ]
            assert row["prediction"] == [names[token % 5] for token in firsts]

    def test_words_without_room_have_no_prediction_and_no_part_in_the_metrics(
        self, make_job: MakeJob
    ) -> None:
        job = make_job({"train": ROWS, "validation": ROWS[:1]}, task={"max_seq_length": 5})
        result, _ = job.train()
        row = job.predictions()[0]
        assert row["prediction"][3:] == [None, None]
        right = sum(tag == guess for tag, guess in zip(row["tags"], row["prediction"], strict=True))
        assert result.metrics["eval_accuracy"] == right / 3

    def test_tags_without_chunks_have_an_accuracy_only(self, make_job: MakeJob) -> None:
        rows = [{"tokens": ["Ada", "wrote"], "tags": ["NOUN", "VERB"]}] * 4
        result, _ = make_job({"train": rows, "validation": rows}).train()
        assert set(evaluations(result)) == {"eval_loss", "eval_accuracy"}


class TestIgnoredWords:
    @pytest.mark.parametrize("mark", [-100, "-100"])
    def test_have_no_part_in_loss_and_metrics(self, make_job: MakeJob, mark: Any) -> None:
        """As in transformers and in every pipeline for it, -100 is not a class."""
        tags = [["B-PER", "O", mark, "O", "B-LOC"], [mark, mark, "O", "O"], ["O", mark, "B-LOC"]]
        rows = [{**row, "tags": each} for row, each in zip(ROWS, tags, strict=False)]
        job = make_job(
            {"train": rows, "validation": rows, "test": rows},
            dropout=0.0,
            learning_rate=0.0,
        )
        result, recorder = job.train()
        output = job.output(result)
        model = transformers.AutoModelForTokenClassification.from_pretrained(output).eval()
        assert model.config.id2label == {0: "B-LOC", 1: "B-PER", 2: "O"}
        tokenizer = transformers.AutoTokenizer.from_pretrained(output)
        batch = tokenizer(
            [row["tokens"] for row in rows],
            is_split_into_words=True,
            padding=True,
            return_tensors="pt",
        )
        targets = torch.full(batch["input_ids"].shape, -100)
        for number, each in enumerate(tags):
            words = batch.word_ids(number)
            for word, tag in enumerate(each):
                targets[number, words.index(word)] = model.config.label2id.get(tag, -100)
        expected = model(**batch, labels=targets).loss.item()
        assert recorder.train_values("loss")[1] == pytest.approx(expected, rel=1e-6)
        assert result.metrics["eval_loss"] == pytest.approx(expected, rel=1e-6)
        assert result.metrics["test_loss"] == pytest.approx(expected, rel=1e-6)
        found = job.predictions()
        assert [row["tags"] for row in found] == [
            [None if tag == mark else tag for tag in each] for each in tags
        ]
        pairs = [
            (tag, guess)
            for row in found
            for tag, guess in zip(row["tags"], row["prediction"], strict=True)
            if tag is not None
        ]
        right = sum(tag == guess for tag, guess in pairs)
        assert len(pairs) == 8
        assert result.metrics["eval_accuracy"] == pytest.approx(right / 8)
        report = job.prepared.data_report
        assert report is not None
        for split in ("train", "validation"):
            assert report["splits"][split]["words_without_a_label"] == 4
        assert report["splits"]["train"]["labels"] == {"O": 5, "B-LOC": 2, "B-PER": 1}

    @pytest.mark.parametrize("names", [None, ["O", "B-PER"]])
    def test_with_names_and_all_tokens(self, make_job: MakeJob, names: list[str] | None) -> None:
        tags = ["B-PER", -100, "O"] if names is None else [1, -100, 0]
        rows = [{"tokens": ["Ada", "unbelievableness", "wrote"], "tags": tags}]
        row = features(
            make_job({"train": rows}, task={"label_names": names, "label_all_tokens": True})
        )
        first, other = (0, 1) if names is None else (1, 0)
        assert row[0]["labels"] == [-100, first, -100, -100, other, -100]

    def test_another_mark_is_noticed(self, make_job: MakeJob) -> None:
        job = make_job({"train": [{"tokens": ["Ada", "wrote", "it"], "tags": [1, -1, -1]}]})
        job.prepare()
        (notice,) = [n for n in job.notices if isinstance(n, Notice) and "label" in n.data]
        assert notice.data == {"label": "-1", "words": 2}
        assert notice.message.endswith("To ignore these words, give them the tag -100.")

    def test_a_model_that_has_learned_the_mark_keeps_it(self) -> None:
        parameters = TokenClassificationSpec(label_names=["-100", "O"])
        row = RowCleaner("train", parameters)({"tokens": ["a", "b"], "tags": ["-100", "O"]})
        assert row["tags"] == ["-100", "O"]


class TestFaults:
    def test_an_unknown_tag_of_the_validation_split(self, make_job: MakeJob) -> None:
        odd = {"tokens": ["Ada", "wrote"], "tags": ["B-ORG", "O"]}
        job = make_job({"train": ROWS, "validation": [ROWS[0], odd]})
        with fails_with(
            FailureCode.LABEL_MISMATCH, r"validation\.jsonl, line 2: the label 'B-ORG'"
        ):
            job.prepare()
        job.body["dataset"] |= {"on_bad_row": "skip", "max_bad_fraction": 0.5}
        report = job.prepare().data_report
        assert report is not None
        assert report["splits"]["validation"]["skipped_by_reason"] == {"unknown_label": 1}
        assert job.splits["validation"].examples["tags"][:] == [ROWS[0]["tags"]]

    def test_a_bad_row_is_named_by_file_and_line(self, make_job: MakeJob) -> None:
        job = make_job({"train": [*ROWS, {"tokens": ["Ada"], "tags": ["O", "O"]}]})
        with pytest.raises(
            StageError, match=r"train\.jsonl, line 5: the row has 1 `tokens`, but 2"
        ):
            job.prepare()

    @pytest.mark.parametrize(
        ("row", "problem"),
        [
            ({"tokens": [], "tags": []}, "`tokens` is empty"),
            ({"tokens": "['Ada']", "tags": "O"}, r"`tokens` must be a list; .* as json.dumps does"),
            ({"tokens": "Ada wrote", "tags": "O"}, "the row has 2 `tokens`, but 1 `tags`"),
            ({"tokens": ["Ada", 3], "tags": ["O", "O"]}, "`tokens` must be text, not int"),
            ({"tokens": ["Ada"], "tags": None}, "`tags` must be a list, not null"),
            ({"tokens": ["Ada"], "tags": [None]}, "`tags` must be text or a whole number"),
        ],
    )
    def test_refuses(self, row: dict[str, Any], problem: str) -> None:
        with pytest.raises(RowError, match=problem):
            RowCleaner("train", TokenClassificationSpec())(row)


class TestTraining:
    def test_accumulated_batches_weigh_every_word_the_same(self, make_job: MakeJob) -> None:
        make = partial(make_job, {"train": ROWS}, dropout=0.0)
        assert_accumulates(make, 4, 1, ("loss", "grad_norm"), rel=1e-5)
