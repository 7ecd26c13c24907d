"""text-classification through the real prepare and train stages."""

import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from pydantic import ValidationError
from safetensors.torch import load_file

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice
from service.contract.tasks.parameters import TextClassificationSpec
from tests.support.models import minilm_dir, save_tiny_bert, save_tiny_gpt2
from tests.tasks.classification.jobs import MakeJob, evaluations, maker
from tests.tasks.stages import StagedJob, assert_accumulates, write_rows
from tests.training.support.jobs import fails_with
from worker.tasks import registry
from worker.tasks.base import load_splits

EXAMPLES = Path(__file__).resolve().parents[3] / "examples" / "classification"


@pytest.fixture
def make_job(tmp_path: Path, trainings: None) -> MakeJob:
    return maker(tmp_path / "home", "text-classification")


ROWS = [{"text": f"number {n} is {'odd' if n % 2 else 'even'}", "label": n % 2} for n in range(12)]


class TestModel:
    def test_the_finished_model_has_the_labels(self, make_job: MakeJob) -> None:
        rows = [{"text": "a", "label": "sad"}, {"text": "b", "label": "glad"}] * 3
        job = make_job({"train": [*rows, {"text": "c", "label": "mad"}]})
        result, recorder = job.train()
        model = transformers.AutoModelForSequenceClassification.from_pretrained(job.output(result))
        assert model.config.id2label == {0: "glad", 1: "mad", 2: "sad"}
        assert model.config.label2id == {"glad": 0, "mad": 1, "sad": 2}
        assert model.config.problem_type == "single_label_classification"
        assert model.classifier.out_features == 3
        new = [event for event in recorder.of(Notice) if "weights" in event.data]
        assert new[0].data["weights"] == ["classifier.bias", "classifier.weight"]

    def test_a_head_of_another_size_starts_anew(self, make_job: MakeJob, tmp_path: Path) -> None:
        base = save_tiny_bert(tmp_path / "base")
        transformers.AutoModelForSequenceClassification.from_pretrained(
            base, num_labels=5
        ).save_pretrained(base)
        job = make_job({"train": ROWS}, model=base)
        result, recorder = job.train()
        new = [event for event in recorder.of(Notice) if "weights" in event.data]
        assert new[0].data["weights"] == ["classifier.bias", "classifier.weight"]
        weights = load_file(job.output(result) / "model.safetensors")
        assert weights["classifier.weight"].shape == (2, 32)

    def test_a_head_of_the_same_size_is_kept(self, make_job: MakeJob, tmp_path: Path) -> None:
        base = save_tiny_bert(tmp_path / "base")
        model = transformers.AutoModelForSequenceClassification.from_pretrained(base, num_labels=2)
        model.save_pretrained(base)
        job = make_job({"train": ROWS}, model=base, learning_rate=0.0)
        result, recorder = job.train()
        assert not [event for event in recorder.of(Notice) if "weights" in event.data]
        weights = load_file(job.output(result) / "model.safetensors")
        assert torch.equal(weights["classifier.weight"], model.classifier.weight)

    def test_a_decoder_learns_where_its_padding_begins(
        self, make_job: MakeJob, tmp_path: Path
    ) -> None:
        base = save_tiny_gpt2(tmp_path / "base")
        tokenizer = transformers.AutoTokenizer.from_pretrained(base)
        tokenizer.pad_token = tokenizer.eos_token
        tokenizer.save_pretrained(base)
        rows = [{"text": "a" * (n + 1), "label": n % 2} for n in range(8)]
        result, _ = make_job({"train": rows}, model=base).train()
        config = transformers.AutoConfig.from_pretrained(
            tmp_path / "home/job" / str(result.output_dir)
        )
        assert config.pad_token_id == tokenizer.pad_token_id

    def test_a_body_of_another_size_is_refused(self, make_job: MakeJob, tmp_path: Path) -> None:
        base = save_tiny_bert(tmp_path / "base")
        config = json.loads((base / "config.json").read_text())
        (base / "config.json").write_text(json.dumps(config | {"max_position_embeddings": 100}))
        job = make_job({"train": ROWS}, model=base)
        with fails_with(FailureCode.UNSUPPORTED_ARCHITECTURE, r"position_embeddings"):
            job.train()


class TestProblems:
    def test_several_labels(self, make_job: MakeJob) -> None:
        rows = [
            {"text": f"{n}", "label": [name for name in "abc" if n % (ord(name) - 95) == 0]}
            for n in range(12)
        ]
        job = make_job({"train": rows, "validation": rows}, max_steps=3)
        result, _ = job.train()
        assert {name.removeprefix("eval_") for name in evaluations(result)} == {
            "loss",
            "accuracy",
            "f1",
            "f1_micro",
            "f1_macro",
            "f1_weighted",
        }
        first = job.predictions()[0]
        assert first["label"] == ["a", "b", "c"]
        assert first["prediction"] == [n for n, p in first["probabilities"].items() if p > 0.5]

    def test_a_number(self, make_job: MakeJob) -> None:
        rows = [{"text": f"{n}", "label": n / 4} for n in range(12)]
        job = make_job({"train": rows, "validation": rows}, max_steps=3)
        result, _ = job.train()
        assert {name.removeprefix("eval_") for name in evaluations(result)} == {
            "loss",
            "pearson",
            "spearmanr",
        }
        found = job.predictions()
        errors = [(row["prediction"] - row["label"]) ** 2 for row in found]
        assert result.metrics["eval_loss"] == pytest.approx(sum(errors) / 12, rel=1e-6)
        assert [row["label"] for row in found] == [n / 4 for n in range(12)]

    @pytest.mark.parametrize(
        ("labels", "problem"),
        [
            ([0, 1, 2, 1, 0, 2], "single_label_classification"),
            ([["a"], ["a", "b"], [], ["b"], ["a"], ["b"]], "multi_label_classification"),
            ([0.5, 1.0, 2.5, -1.0, 0.0, 3.0], "regression"),
        ],
    )
    def test_the_loss_is_that_of_transformers(
        self, make_job: MakeJob, labels: list[Any], problem: str
    ) -> None:
        """Without dropout and with one batch: the model's own loss on the same rows."""
        rows = [{"text": f"text {n}", "label": label} for n, label in enumerate(labels)]
        job = make_job({"train": rows, "validation": rows}, dropout=0.0, learning_rate=0.0)
        result, recorder = job.train()
        model = transformers.AutoModelForSequenceClassification.from_pretrained(
            job.output(result)
        ).eval()
        assert model.config.problem_type == problem
        features = job.splits["train"].features[:]
        tokenizer = transformers.AutoTokenizer.from_pretrained(job.output(result))
        batch = tokenizer.pad({"input_ids": features["input_ids"]}, return_tensors="pt")
        dtype = torch.long if problem.startswith("single") else torch.float32
        targets = torch.tensor(features["labels"], dtype=dtype)
        expected = model(**batch, labels=targets).loss.item()
        assert recorder.train_values("loss")[1] == pytest.approx(expected, rel=1e-6)
        assert result.metrics["eval_loss"] == pytest.approx(expected, rel=1e-6)


VECTORS = [[1, 0, 1], [0, 0, 0], [0, 1, 0], [1, 1, 1], [0, 0, 1], [1, 0, 0]]


def inferred(job: StagedJob) -> dict[str, Any]:
    """What the events report, each once."""
    found = [
        n.data["inferred"] for n in job.notices if isinstance(n, Notice) and "inferred" in n.data
    ]
    merged = {name: each["value"] for one in found for name, each in one.items()}
    assert len(merged) == len(found)
    return merged


class TestVectors:
    @pytest.mark.parametrize(
        ("kind", "given"),
        [
            (int, {"problem_type": "multi_label_classification"}),
            (int, {"label_names": ["a", "b", "c"]}),
            (float, {}),
            (bool, {}),
            (int, {"label_columns": ["a", "b", "c"]}),
        ],
    )
    def test_are_trained_as_transformers_trains_them(
        self, make_job: MakeJob, tmp_path: Path, kind: type, given: dict[str, Any]
    ) -> None:
        """The loss of the rows' own vectors, which transformers takes as they are."""
        rows = [{"text": f"text {n}", "label": [*map(kind, v)]} for n, v in enumerate(VECTORS)]
        train: Any = rows
        if "label_columns" in given:
            train = tmp_path / "train.csv"
            lines = [f"text {n},{','.join(map(str, v))}" for n, v in enumerate(VECTORS)]
            train.write_text("\n".join(["text,a,b,c", *lines]))
        job = make_job(
            {"train": train, "validation": train},
            task=given,
            dropout=0.0,
            learning_rate=0.0,
            per_device_train_batch_size=6,
        )
        result, recorder = job.train()
        output = job.output(result)
        model = transformers.AutoModelForSequenceClassification.from_pretrained(output).eval()
        names = (
            ["a", "b", "c"] if {"label_names", "label_columns"} & given.keys() else ["0", "1", "2"]
        )
        assert model.config.id2label == dict(enumerate(names))
        tokenizer = transformers.AutoTokenizer.from_pretrained(output)
        batch = tokenizer([row["text"] for row in rows], padding=True, return_tensors="pt")
        targets = torch.tensor(VECTORS, dtype=torch.float32)
        expected = model(**batch, labels=targets).loss.item()
        assert recorder.train_values("loss")[1] == pytest.approx(expected, rel=1e-6)
        assert result.metrics["eval_loss"] == pytest.approx(expected, rel=1e-6)
        assert [row["label"] for row in job.predictions()] == [
            [name for name, bit in zip(names, vector, strict=True) if bit] for vector in VECTORS
        ]
        found = inferred(job)
        assert found.get("task.label_format") == (None if "label_columns" in given else "vector")

    def test_a_label_that_no_row_has_keeps_its_place(self, make_job: MakeJob) -> None:
        rows = [{"text": f"{n}", "label": [n % 2, 0, 1, 0]} for n in range(4)]
        job = make_job({"train": rows, "validation": rows, "test": rows[:2]})
        prepared = job.splits
        for split, count in (("train", 4), ("validation", 4), ("test", 2)):
            targets = prepared[split].features["labels"][:]
            assert targets == [[n % 2, 0, 1, 0] for n in range(count)]
        found = inferred(job)
        assert found == {
            "task.label_format": "vector",
            "task.problem_type": "multi_label_classification",
            "task.label_names": ["0", "1", "2", "3"],
        }
        again = make_job({"train": rows, "validation": rows, "test": rows[:2]})
        again.prepare()  # the prepared data of the first
        assert inferred(again) == found

    @pytest.mark.parametrize(
        ("labels", "task", "code", "problem"),
        [
            ([[0, 1], [1, 0]], {}, FailureCode.INVALID_OPTION, "`task.label_format` is needed"),
            ([[1, 1, 0], [0, 1]], {}, FailureCode.INVALID_OPTION, "`task.label_format` is needed"),
            (
                [[1, 1, 0], [0, 1]],
                {"label_format": "vector"},
                FailureCode.LABEL_MISMATCH,
                "line 2: `label` has 2 entries, but there are 3",
            ),
            (
                [[0, 2], [1], [2, 2]],
                {"label_format": "indices"},
                FailureCode.UNREADABLE_ROW,
                "line 3",
            ),
        ],
    )
    def test_what_cannot_be_read_is_refused(
        self, make_job: MakeJob, labels: list[Any], task: dict[str, Any], code: Any, problem: str
    ) -> None:
        rows = [{"text": f"{n}", "label": label} for n, label in enumerate(labels)]
        with fails_with(code, problem):
            make_job({"train": rows}, task=task).prepare()

    def test_of_another_length_in_the_validation_rows(self, make_job: MakeJob) -> None:
        rows = {
            split: [{"text": "a", "label": [1] * length}, {"text": "b", "label": [0] * length}]
            for split, length in (("train", 3), ("validation", 2))
        }
        job = make_job(rows, task={"label_format": "vector"})
        with pytest.raises(StageError, match="vector has 2 entries, but there are 3 labels"):
            job.prepare()

    def test_a_missing_column_of_a_label(self, make_job: MakeJob, tmp_path: Path) -> None:
        train = tmp_path / "train.csv"
        train.write_text("text,toxic\na,1\n")
        job = make_job({"train": train}, task={"label_columns": ["toxic", "rude"]})
        with pytest.raises(StageError, match=r"Missing column 'rude'.*`task.label_columns` lists"):
            job.prepare()

    def test_a_finished_model_is_evaluated_and_predicts_with_them(
        self, make_job: MakeJob, tmp_path: Path
    ) -> None:
        rows = [{"text": f"{n}", "label": v} for n, v in enumerate(VECTORS)]
        job = make_job({"train": rows, "validation": rows}, task={"label_names": ["a", "b", "c"]})
        result, _ = job.train()
        model = job.output(result)
        again = maker(tmp_path / "again", "text-classification")({"test": rows[:2]}, model=model)
        again.body |= {"mode": "predict", "training": {}}
        examples = again.splits["test"]
        assert examples.features["labels"][:] == VECTORS[:2]
        assert inferred(again) == {
            "task.label_format": "vector",
            "task.label_names": ["a", "b", "c"],
        }


class TestInferences:
    def test_whole_numbers_with_a_point_are_classes(
        self, make_job: MakeJob, tmp_path: Path
    ) -> None:
        """What pandas writes of a column of 0 and 1 with an empty cell."""
        train = tmp_path / "train.csv"
        train.write_text("text,label\na,1.0\nb,0.0\nc,\nd,1.0\n")
        job = make_job({"train": train, "validation": ROWS})
        job.body["dataset"] |= {"on_bad_row": "skip", "max_bad_fraction": 0.5}
        result, _ = job.train()
        config = transformers.AutoConfig.from_pretrained(job.output(result))
        assert (config.problem_type, config.id2label) == (
            "single_label_classification",
            {0: "0", 1: "1"},
        )
        report = job.prepared.data_report
        assert report is not None
        assert report["splits"]["train"]["skipped_by_reason"] == {"empty_label": 1}
        assert report["splits"]["train"]["labels"] == {"1": 2, "0": 1}
        assert report["inferred"]["task.problem_type"] == {
            "value": "single_label_classification",
            "reason": "all labels are whole numbers, each a class. To predict a number instead, "
            "set `task.problem_type: regression`",
        }
        assert report["inferred"]["task.label_names"] == {
            "value": ["0", "1"],
            "reason": "the labels of the training rows, sorted; rows of each: 0 1, 1 2",
        }
        assert inferred(job).keys() == {"task.problem_type", "task.label_names"}

    @pytest.mark.parametrize("mark", [-1, -100, "-1"])
    def test_marks_for_no_label_are_noticed_and_can_be_left_out(
        self, make_job: MakeJob, mark: Any
    ) -> None:
        rows = [*ROWS, {"text": "no gold label", "label": mark}]
        job = make_job({"train": rows})
        job.prepare()
        (notice,) = [n for n in job.notices if isinstance(n, Notice) and "label" in n.data]
        assert notice.data == {"label": str(mark), "rows": 1}
        assert "`task.label_names` and set `dataset.on_bad_row: skip`" in notice.message
        job = make_job({"train": rows}, task={"label_names": ["even", "odd"]})
        job.body["dataset"] |= {"on_bad_row": "skip", "max_bad_fraction": 0.1}
        prepared = job.splits["train"]
        assert prepared.features["labels"][:] == [n % 2 for n in range(12)]

    def test_a_test_set_with_marks_for_scores_is_not_scored(self, make_job: MakeJob) -> None:
        rows = [{"text": f"{n}", "label": n / 4} for n in range(4)]
        test = [{"text": f"{n}", "label": -1.0} for n in range(3)]
        result, _ = make_job({"train": rows, "test": test}).train()
        assert "test_loss" not in result.metrics

    def test_labels_that_differ_in_case_or_blanks_only(self, make_job: MakeJob) -> None:
        words = ["Very good", "very good", "verygood", "bad", "bad"]
        job = make_job({"train": [{"text": f"{n}", "label": w} for n, w in enumerate(words)]})
        job.prepare()
        (notice,) = [n for n in job.notices if isinstance(n, Notice) and "labels" in n.data]
        assert notice.data == {"labels": [["Very good", "very good", "verygood"]]}


class TestFeatures:
    def test_pairs_are_encoded_together(self, make_job: MakeJob) -> None:
        rows = [
            {"text": "the first one", "text_pair": "the second", "label": "a"},
            {"text": "one", "text_pair": "two", "label": "b"},
        ]
        job = make_job({"train": rows})
        features = job.splits["train"].features
        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_dir())
        assert tokenizer.decode(features[0]["input_ids"]) == (
            "[CLS] the first one [SEP] the second [SEP]"
        )
        assert features[0]["token_type_ids"] == [0, 0, 0, 0, 0, 1, 1, 1]
        assert features["labels"][:] == [0, 1]

    def test_long_texts_are_cut_and_the_cut_is_reported(self, make_job: MakeJob) -> None:
        long = [{"text": "word " * 300, "label": label} for label in "ab"]
        job = make_job({"train": [*long, {"text": "short", "label": "a"}]})
        features = job.splits["train"].features
        assert [len(ids) for ids in features["input_ids"]] == [128, 128, 3]
        notice = next(n for n in job.notices if isinstance(n, Notice) and "cut" in n.message)
        assert notice.data == {"split": "train", "texts": 2, "max_seq_length": 128}

    @pytest.mark.parametrize(
        ("given", "limit", "length"),
        [(None, 64, 64), (None, 512, 128), (None, None, 128), (9, 64, 9)],
    )
    def test_the_longest(self, given: int | None, limit: int | None, length: int) -> None:
        task = registry.get("text-classification")
        assert task.max_length(TextClassificationSpec(max_seq_length=given), limit) == length

    def test_a_csv_file(self, make_job: MakeJob, tmp_path: Path) -> None:
        path = tmp_path / "train.csv"
        path.write_text('title,stars\n"good, very",1.5\nbad,0\n')
        job = make_job({"train": path})
        job.body["dataset"]["columns"] = {"text": "title", "label": "stars"}
        assert job.splits["train"].features["labels"][:] == [1.5, 0.0]


class TestLabelFaults:
    def test_an_unknown_label_of_the_validation_split(self, make_job: MakeJob) -> None:
        rows = [*ROWS[:3], {"text": "t", "label": 7}, {"text": "t", "label": ["a"]}]
        job = make_job({"train": ROWS, "validation": rows})
        message = r"2 of 5 rows of the validation split .*validation\.jsonl, line 4: the label '7'"
        with fails_with(FailureCode.LABEL_MISMATCH, message) as e:
            job.prepare()
        assert e.value.failure.action == (
            "Correct the labels of the 2 bad rows (they are listed), or list all labels in "
            "`task.label_names`, then submit again; or leave such rows out with "
            "`dataset.on_bad_row: skip`."
        )
        details = e.value.failure.details
        assert (details["split"], details["place"]) == ("validation", "validation.jsonl, line 4")
        assert details["bad_by_reason"] == {"mixed_labels": 1, "unknown_label": 1}

    def test_is_left_out_with_skip_as_if_it_was_not_there(self, make_job: MakeJob) -> None:
        fit = make_job({"train": ROWS, "validation": ROWS[:4]})
        expected = fit.splits["validation"]
        unknown = {"text": "t", "label": 7}
        job = make_job({"train": ROWS, "validation": [unknown, *ROWS[:4]], "test": [unknown]})
        job.body["dataset"] |= {"on_bad_row": "skip", "max_bad_fraction": 0.2}
        prepared = job.prepare()
        splits = load_splits(prepared.prepared_dir)
        assert splits["validation"].examples.to_list() == expected.examples.to_list()
        assert splits["validation"].features.to_list() == expected.features.to_list()
        assert len(splits["test"].examples) == 1  # its rows need no labels
        assert prepared.data_report is not None
        counts = prepared.data_report["splits"]["validation"]
        assert (counts["rows_read"], counts["rows_used"]) == (5, 4)
        assert counts["skipped_by_reason"] == {"unknown_label": 1}
        job.body["dataset"]["max_bad_fraction"] = 0.19
        with fails_with(FailureCode.LABEL_MISMATCH, r"20\.00% of them"):
            job.prepare()

    def test_faults_of_several_splits_are_named_together(self, make_job: MakeJob) -> None:
        bad = {"text": " ", "label": "a"}
        job = make_job({"train": [*ROWS, bad], "validation": [*ROWS[:3], bad, bad], "test": [bad]})
        with pytest.raises(StageError) as e:
            job.prepare()
        failure = e.value.failure
        assert failure.message.startswith(
            f"1 of {len(ROWS) + 1} rows of the train split cannot be used (empty_text 1); "
            "2 of 5 rows of the validation split cannot be used (empty_text 2); "
            "1 of 1 rows of the test split cannot be used (empty_text 1). train.jsonl, line "
        )
        rows = [(row["split"], row["place"]) for row in failure.details["bad_rows"]]
        assert rows == [
            ("train", f"train.jsonl, line {len(ROWS) + 1}"),
            ("validation", "validation.jsonl, line 4"),
            ("validation", "validation.jsonl, line 5"),
            ("test", "test.jsonl, line 1"),
        ]
        assert failure.details["rows_bad"] == 4
        counts = {name: split["rows_bad"] for name, split in failure.details["splits"].items()}
        assert counts == {"train": 1, "validation": 2, "test": 1}
        report = json.loads((job.workspace / "attempts/1/data_report.json").read_text())
        assert [split["rows_skipped"] for split in report["splits"].values()] == [1, 2, 1]

    def test_labels_are_compared_once_all_training_rows_can_be_used(
        self, make_job: MakeJob
    ) -> None:
        """Those that have to be corrected may have the label."""
        train = [*ROWS, {"text": " ", "label": "rare"}]
        job = make_job({"train": train, "validation": [{"text": "t", "label": "rare"}]})
        with pytest.raises(StageError) as e:
            job.prepare()
        assert list(e.value.failure.details["splits"]) == ["train"]

    def test_a_row_without_its_label_is_named_by_file_and_line(self, make_job: MakeJob) -> None:
        job = make_job({"train": [*ROWS, {"text": "t", "label": None}]})
        with fails_with(FailureCode.UNREADABLE_ROW, r"train\.jsonl, line 13: `label` must be"):
            job.prepare()

    def test_a_label_beside_the_named_ones(self, make_job: MakeJob) -> None:
        job = make_job({"train": ROWS}, task={"label_names": ["even", "odd"]})
        job.body["dataset"]["validation"] = write_rows(
            job.home / "more.jsonl", [{"text": "t", "label": "prime"}]
        )
        with fails_with(FailureCode.LABEL_MISMATCH, r"more\.jsonl, line 1: `label` 'prime'"):
            job.prepare()


class TestTestSplit:
    def test_predictions_without_labels(self, make_job: MakeJob) -> None:
        job = make_job({"train": ROWS, "test": [{"text": "number 3 is odd"}, {"text": "x"}]})
        result, _ = job.train()
        found = job.predictions("test/predictions.json")
        assert [row["row"] for row in found] == [1, 2]
        assert all(set(row) == {"row", "prediction", "probabilities"} for row in found)
        classify = transformers.pipeline(
            "text-classification", model=str(job.output(result)), device="cpu"
        )
        theirs = classify(["number 3 is odd", "x"])
        assert [row["prediction"] for row in found] == [each["label"] for each in theirs]
        scores = [row["probabilities"][row["prediction"]] for row in found]
        assert scores == pytest.approx([each["score"] for each in theirs], rel=1e-5)


class TestAccumulation:
    def test_two_batches_are_one_large_batch(self, make_job: MakeJob) -> None:
        rows = [{"text": "word " * (n + 1), "label": n % 3} for n in range(8)]
        make = partial(make_job, {"train": rows}, dropout=0.0)
        assert_accumulates(make, 8, 2, ("loss", "grad_norm"), rel=1e-5)


class TestNamedValidationSets:
    def both(self, job: StagedJob) -> dict[str, str]:
        return {
            "low": write_rows(job.home / "low.jsonl", ROWS[:4]),
            "high": write_rows(job.home / "high.jsonl", ROWS[4:]),
        }

    def test_each_has_its_metrics_and_files(self, make_job: MakeJob) -> None:
        job = make_job({"train": ROWS}, eval_strategy="steps", eval_steps=1)
        job.body["dataset"]["validation"] = self.both(job)
        result, recorder = job.train()
        assert {name: counts["examples"] for name, counts in job.prepared.splits.items()} == {
            "train": 12,
            "validation.low": 4,
            "validation.high": 8,
        }
        names = set(evaluations(result))
        assert {"eval_low_loss", "eval_low_f1", "eval_high_loss", "eval_high_f1"} <= names
        assert all(name.startswith(("eval_low_", "eval_high_")) for name in names)
        assert len(job.predictions("validation.low/predictions.json")) == 4
        assert len(job.predictions("validation.high/predictions.json")) == 8
        assert list(recorder.evaluations()) == [0, 1, 2]
        assert result.baseline.keys() == names

    @pytest.mark.parametrize("name", ["eval_high_loss", "high_loss"])
    def test_one_of_them_chooses_the_best(self, make_job: MakeJob, name: str) -> None:
        job = make_job(
            {"train": ROWS},
            max_steps=4,
            learning_rate=0.05,
            eval_strategy="steps",
            eval_steps=1,
            save_strategy="steps",
            save_steps=1,
            load_best_model_at_end=True,
            metric_for_best_model=name,
        )
        job.body["dataset"]["validation"] = self.both(job)
        result, recorder = job.train()
        losses = {
            step: values["eval_high_loss"]
            for step, values in recorder.evaluations().items()
            if step > 0
        }
        assert result.best_step == min(losses, key=lambda step: losses[step])
        assert result.metrics["eval_high_loss"] == min(losses.values())

    def test_an_unknown_name_is_found_before_the_job_exists(self, make_job: MakeJob) -> None:
        job = make_job(
            {"train": ROWS},
            eval_strategy="steps",
            save_strategy="best",
            metric_for_best_model="eval_middle_loss",
        )
        job.body["dataset"]["validation"] = self.both(job)
        with pytest.raises(ValidationError, match=r"`low_loss`.*`high_loss`"):
            job.train()


def test_expected_labels_are_kept_for_the_user(make_job: MakeJob) -> None:
    job = make_job({"train": ROWS, "validation": ROWS})
    result, _ = job.train()
    found = job.predictions()
    assert [row["label"] for row in found] == [str(n % 2) for n in range(12)]
    right = sum(row["label"] == row["prediction"] for row in found)
    assert result.metrics["eval_accuracy"] == right / 12
    assert [sample["row"] for sample in result.samples] == [1, 5, 9]
    assert result.samples[0]["text"] == "number 0 is even"
