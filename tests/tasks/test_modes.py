"""`mode: evaluate` and `mode: predict`: the numbers and the answers are those of the job that
trained the model. Here are variants of tasks; tests/doctor/test_tasks.py has each task."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForSequenceClassification, pipeline

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import ArtifactWritten, Metric, Notice, Progress
from service.contract.stage.stages import TrainResult
from tests.data.squad_sample import squad_rows
from tests.support.models import save_tiny_bert, save_tiny_gpt2
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import PLAIN, Recorder, fails_with, scores
from worker.stages.base import Stopped

pytestmark = pytest.mark.usefixtures("trainings")

Rows = list[dict[str, Any]]
TEXTS = [
    f"the report of the water board was read by {number} in the morning" for number in range(24)
]


@dataclass(frozen=True)
class Case:
    task: dict[str, Any]
    rows: Rows
    labels: tuple[str, ...]
    """Columns that predictions need not have."""
    base: Callable[[Path], Path]

    def unlabelled(self) -> Rows:
        return [{k: v for k, v in row.items() if k not in self.labels} for row in self.rows]


QA = {"type": "question-answering", "max_seq_length": 128, "doc_stride": 32}
CASES = {
    "question-answering v2": Case(
        {**QA, "version_2_with_negative": True},
        squad_rows("train", "2.0")[:12],
        ("answers",),
        save_tiny_bert,
    ),
    "question-answering v2 auto": Case(
        {**QA, "version_2_with_negative": True, "null_score_diff_threshold": "auto"},
        squad_rows("train", "2.0")[:12],
        ("answers",),
        save_tiny_bert,
    ),
    "text-classification": Case(
        {"type": "text-classification"},
        [{"text": text, "label": "odd" if n % 2 else "even"} for n, text in enumerate(TEXTS)],
        ("label",),
        save_tiny_bert,
    ),
    "regression": Case(
        {"type": "text-classification"},
        [{"text": text, "label": n / 7} for n, text in enumerate(TEXTS)],
        ("label",),
        save_tiny_bert,
    ),
    "several labels": Case(
        {"type": "text-classification"},
        [{"text": t, "label": [["a"], ["a", "b"], []][n % 3]} for n, t in enumerate(TEXTS)],
        ("label",),
        save_tiny_bert,
    ),
    "masked-lm": Case(
        {"type": "masked-lm", "max_seq_length": 16},
        [{"text": t} for t in TEXTS],
        (),
        save_tiny_bert,
    ),
}


@dataclass
class Trained:
    case: Case
    job: StagedJob
    result: TrainResult

    @property
    def model(self) -> Path:
        assert self.result.output_dir is not None
        return self.job.output(self.result)

    def other(self, mode: str, home: Path, dataset: dict[str, Any], **sections: Any) -> StagedJob:
        """A job of the same task that uses the trained model."""
        made = job_of(home, self.case.task, self.model, dataset, self.job.body["training"])
        made.body |= {"mode": mode, **sections}
        return made


def train(case: Case, home: Path) -> Trained:
    dataset = {"train": case.rows, "validation": case.rows[:6], "test": case.unlabelled()[6:12]}
    options = {"max_steps": 2, "learning_rate": 1e-3, "per_device_eval_batch_size": 4}
    job = job_of(home, case.task, case.base(home / "base"), dataset, options)
    return Trained(case, job, job.train()[0])


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Trained]:
    made: dict[str, Trained] = {}

    def once(name: str) -> Trained:
        if name not in made:
            made[name] = train(CASES[name], tmp_path_factory.mktemp("trained") / "job")
        return made[name]

    return once


def files_of(job: StagedJob) -> dict[str, bytes]:
    folder = job.workspace / "attempts" / "2" / "predictions"
    return {str(p.relative_to(folder)): p.read_bytes() for p in folder.rglob("*") if p.is_file()}


def result_file(job: StagedJob, name: str) -> bytes:
    return (job.workspace / "attempts" / "2" / "results" / name).read_bytes()


# The first finds no threshold, and else computes as the second.
VARIANTS = [
    pytest.param("question-answering v2", marks=pytest.mark.heavy),
    *("question-answering v2 auto", "regression", "several labels"),
]


class TestVariants:
    @pytest.mark.parametrize("name", VARIANTS)
    def test_an_evaluation_gives_the_numbers_of_the_training(
        self, name: str, trained: Callable[[str], Trained], tmp_path: Path
    ) -> None:
        first = trained(name)
        given = first.job.body["dataset"]
        files = {split: given[split] for split in ("validation", "test")}
        job = first.other("evaluate", tmp_path / "job", files)
        result, recorder = job.train()
        assert json.dumps(scores(result.metrics)) == json.dumps(scores(first.result.metrics))
        assert "eval_loss" in result.metrics
        assert result.samples[: len(first.result.samples)] == first.result.samples
        assert result.output_dir is result.weights_sha256 is None
        assert result.baseline == {}
        (metric,) = recorder.of(Metric)
        assert (metric.kind, metric.step) == ("eval", 0)
        assert metric.values.items() <= result.metrics.items()
        assert metric.values.keys() >= {f"eval_{name}" for name in scores(result.metrics)}
        assert result.metrics["eval_samples"] == first.result.metrics["eval_samples"]
        assert (
            json.loads(result_file(job, "eval_results.json"))["eval_loss"]
            == metric.values["eval_loss"]
        )
        assert "train" not in job.prepared.splits
        # The same predictions, too.
        assert files_of(job).items() <= files_of(first.job).items()
        assert "predictions.json" in files_of(job)

    @pytest.mark.parametrize("name", VARIANTS)
    def test_predictions_need_no_labels(
        self, name: str, trained: Callable[[str], Trained], tmp_path: Path
    ) -> None:
        first = trained(name)
        test = first.job.body["dataset"]["test"]
        job = first.other("predict", tmp_path / "job", {"test": test})
        _result, recorder = job.train()
        wanted = {n: c for n, c in files_of(first.job).items() if n.startswith("test/")}
        assert files_of(job) == wanted != {}
        assert {event.name for event in recorder.of(ArtifactWritten)} >= set(wanted)
        assert list(job.prepared.splits) == ["test"]

    @pytest.mark.parametrize("name", CASES)
    def test_a_model_without_the_head_is_refused(
        self, name: str, trained: Callable[[str], Trained], tmp_path: Path
    ) -> None:
        first = trained(name)
        given = first.job.body["dataset"]
        model = {"name_or_path": str(save_tiny_bert(tmp_path / "bert"))}
        job = first.other(
            "evaluate", tmp_path / "job", {"validation": given["validation"]}, model=model
        )
        with fails_with(FailureCode.INVALID_OPTION, "These weights would be random") as caught:
            job.prepare()
        assert caught.value.failure.details["weights"]


class TestGeneratedTexts:
    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[..., StagedJob]:
        model = save_tiny_gpt2(tmp_path / "gpt2")

        def make_job(texts: list[str], **task: Any) -> StagedJob:
            task = {"type": "causal-lm", **task}
            test = {"test": [{"text": text} for text in texts]}
            options = {**PLAIN, "per_device_eval_batch_size": 2}
            return job_of(tmp_path, task, model, test, options, mode="predict")

        return make_job

    def test_are_those_of_transformers_pipeline(self, make: Callable[..., StagedJob]) -> None:
        texts = ["the report of the", "water", "the board was read by all who were", "in the"]
        job = make(texts, max_new_tokens=12, generation={"repetition_penalty": 1.3})
        result, _ = job.train()
        rows = job.predictions("test/predictions.json")
        assert [(row["row"], row["prompt"]) for row in rows] == list(enumerate(texts, start=1))
        model = job.body["model"]["name_or_path"]
        write = pipeline("text-generation", model=model, return_full_text=False)
        options = {"max_new_tokens": 12, "repetition_penalty": 1.3, "do_sample": False}
        expected = [write(text, **options)[0]["generated_text"] for text in texts]
        assert [row["prediction"] for row in rows] == expected
        assert len(set(expected)) > 1
        assert all(len(text.strip()) > 0 for text in expected)
        assert result.metrics.keys() == {
            f"test_{name}"
            for name in ("samples", "runtime", "samples_per_second", "steps_per_second")
        }
        assert result.samples[0] == rows[0]
        lines = files_of(job)["test/generated_predictions.txt"].decode().splitlines()
        assert lines == [" ".join(text.splitlines()) for text in expected]

    def test_long_prompts_lose_their_beginning(self, make: Callable[..., StagedJob]) -> None:
        end = "the water board was read by all who were there in the morning"
        job = make(["the report of the " * 40 + end, "the report of the " * 50 + end])
        job.train()
        first, second = (row["prediction"] for row in job.predictions("test/predictions.json"))
        assert first == second != ""
        (notice,) = [event for event in job.notices if isinstance(event, Notice)]
        assert "2 prompts of the test split were cut to their last 32 tokens" in notice.message
        assert job.prepared.data_report is not None
        report = job.prepared.data_report["splits"]["test"]
        assert report["truncated"] == 2

    def test_an_empty_prompt_begins_as_texts_do(self, make: Callable[..., StagedJob]) -> None:
        job = make([""], max_new_tokens=4)
        job.train()
        assert job.predictions("test/predictions.json")[0]["prompt"] == ""

    def test_no_room_for_a_prompt(self, make: Callable[..., StagedJob]) -> None:
        with fails_with(FailureCode.INVALID_OPTION, "leaves no room for a prompt"):
            make(["the"], max_new_tokens=64).prepare()

    def test_sampled_texts_follow_from_the_seed(self, make: Callable[..., StagedJob]) -> None:
        job = make(["the report", "the board"], generation={"do_sample": True})
        job.train()
        first = job.predictions("test/predictions.json")
        job.train()
        assert job.predictions("test/predictions.json") == first


class TestFilledMasks:
    @pytest.fixture
    def make(self, tmp_path: Path, trained: Callable[[str], Trained]) -> Callable[..., StagedJob]:
        first = trained("masked-lm")

        def make_job(texts: list[str], **task: Any) -> StagedJob:
            test = [{"text": text} for text in texts]
            job = first.other("predict", tmp_path / "job", {"test": test})
            job.body |= {"task": {"type": "masked-lm", **task}, "training": PLAIN}
            return job

        return make_job

    def test_are_those_of_transformers_pipeline(self, make: Callable[..., StagedJob]) -> None:
        texts = ["the [MASK] of the board", "a [MASK] was [MASK] in the morning", "[MASK]"]
        job = make(texts, top_k=3)
        job.train()
        rows = job.predictions("test/predictions.json")
        assert [row["text"] for row in rows] == texts
        assert [len(row["masks"]) for row in rows] == [1, 2, 1]
        assert job.prepared.data_report is not None
        assert job.prepared.data_report["splits"]["test"]["truncated"] == 0
        fill = pipeline("fill-mask", model=job.body["model"]["name_or_path"], top_k=3)
        for row, expected in zip(rows, fill(texts), strict=True):
            masks = expected if isinstance(expected[0], list) else [expected]
            for found, wanted in zip(row["masks"], masks, strict=True):
                names = ("token", "token_str")
                assert [[c[n] for n in names] for c in found] == [
                    [c[n] for n in names] for c in wanted
                ]
                scores = [candidate["score"] for candidate in wanted]
                assert [c["score"] for c in found] == pytest.approx(scores, rel=1e-4)

    @pytest.mark.parametrize(
        ("text", "problem"),
        [("nothing", r"has no \[MASK\]:"), ("a " * 40 + "[MASK]", "within its first 16 tokens")],
    )
    def test_a_row_without_a_mask(
        self, make: Callable[..., StagedJob], text: str, problem: str
    ) -> None:
        with fails_with(FailureCode.UNREADABLE_ROW, problem) as caught:
            make(["a [MASK]", text], max_seq_length=16).prepare()
        assert caught.value.failure.message.startswith("Row 2 of the test split")


class TestLabels:
    """They are the model's, whatever the data have."""

    @pytest.fixture
    def make(self, tmp_path: Path) -> Callable[..., StagedJob]:
        def make_job(names: list[str], values: list[Any], **task: Any) -> StagedJob:
            model = tmp_path / "model"
            if not model.exists():
                save_tiny_bert(model)
                whole = AutoModelForSequenceClassification.from_pretrained(
                    model, id2label=dict(enumerate(names)), num_labels=len(names)
                )
                whole.save_pretrained(model)
            rows = [{"text": f"text {value}", "label": value} for value in values]
            task = {"type": "text-classification", **task}
            return job_of(tmp_path, task, model, {"validation": rows}, PLAIN, mode="evaluate")

        return make_job

    def expected(self, job: StagedJob) -> list[str]:
        job.train()
        return [row["label"] for row in job.predictions()]

    def test_rows_need_not_have_them_all(self, make: Callable[..., StagedJob]) -> None:
        # Of the data alone "bad" would be the first of one label.
        job = make(["good", "bad", "awful"], ["bad", "bad"])
        assert self.expected(job) == ["bad", "bad"]
        (row, _) = job.predictions()
        assert list(row["probabilities"]) == ["good", "bad", "awful"]

    def test_whole_numbers_are_places(self, make: Callable[..., StagedJob]) -> None:
        assert self.expected(make(["good", "bad"], [1, 0])) == ["bad", "good"]

    def test_or_names_where_names_are_whole_numbers(self, make: Callable[..., StagedJob]) -> None:
        assert self.expected(make(["1", "2", "3"], [1, 3])) == ["1", "3"]

    def test_unless_the_job_lists_them(self, make: Callable[..., StagedJob]) -> None:
        job = make(["1", "2", "3"], [1, 2], label_names=["1", "2", "3"])
        assert self.expected(job) == ["2", "3"]

    def test_a_model_without_names_is_given_some(self, make: Callable[..., StagedJob]) -> None:
        job = make(["LABEL_0", "LABEL_1"], ["no", "yes"], label_names=["no", "yes"])
        assert self.expected(job) == ["no", "yes"]

    def test_other_names_than_the_models(self, make: Callable[..., StagedJob]) -> None:
        job = make(["good", "bad"], ["no"], label_names=["no", "yes"])
        with fails_with(FailureCode.INVALID_OPTION, "the model's own labels are 'good', 'bad'"):
            job.prepare()

    def test_a_label_that_the_model_does_not_know(self, make: Callable[..., StagedJob]) -> None:
        job = make(["good", "bad"], ["good", "ugly"])
        with fails_with(FailureCode.LABEL_MISMATCH, "is not among the model's labels") as caught:
            job.prepare()
        assert "'ugly'" in caught.value.failure.message

    def test_a_problem_that_is_not_the_models(self, make: Callable[..., StagedJob]) -> None:
        with pytest.raises(StageError, match="the model has 2 outputs"):
            make(["good", "bad"], [0.5], problem_type="regression").prepare()


@pytest.mark.parametrize("given", [("validation", "test"), ("test",)])
def test_a_test_split_without_labels_has_no_scores(
    trained: Callable[[str], Trained], tmp_path: Path, given: tuple[str, ...]
) -> None:
    first = trained("text-classification")
    dataset = first.job.body["dataset"]
    job = first.other("evaluate", tmp_path / "job", {split: dataset[split] for split in given})
    recorder = Recorder()
    if given == ("test",):
        with fails_with(FailureCode.LABEL_MISMATCH, "so nothing can be scored"):
            job.train(recorder=recorder)
        return
    job.train(recorder=recorder)
    messages = [event.message for event in recorder.of(Notice)]
    assert any("it gets predictions, but no scores" in message for message in messages)


def test_a_labelled_test_split_is_scored(trained: Callable[[str], Trained], tmp_path: Path) -> None:
    first = trained("text-classification")
    # The rows of the validation, and therefore its scores.
    job = first.other(
        "evaluate", tmp_path / "job", {"test": first.job.body["dataset"]["validation"]}
    )
    result, recorder = job.train()
    expected = first.result.metrics
    for name in ("loss", "accuracy", "f1"):
        assert result.metrics[f"test_{name}"] == expected[f"eval_{name}"]
    assert not recorder.of(Metric)  # these are of evaluations; MLflow has it as test_…
    assert "test_loss" in json.loads(result_file(job, "test_results.json"))


def test_a_share_of_the_training_rows(trained: Callable[[str], Trained], tmp_path: Path) -> None:
    first = trained("text-classification")
    dataset = {"train": first.case.rows, "validation_split_percentage": 25}
    base = first.job.body["model"]["name_or_path"]
    options = first.job.body["training"]
    with_training = job_of(tmp_path / "train", first.case.task, base, dataset, options)
    result, _ = with_training.train()
    assert result.output_dir is not None
    model = {"name_or_path": str(with_training.output(result))}
    job = first.other("evaluate", tmp_path / "job", dataset, model=model)
    found, _ = job.train()
    assert scores(found.metrics) == scores(result.metrics)
    assert found.metrics["eval_samples"] == result.metrics["eval_samples"]
    assert list(job.prepared.splits) == ["validation"]


def test_a_stop_is_obeyed_at_once(trained: Callable[[str], Trained], tmp_path: Path) -> None:
    first = trained("text-classification")
    test = first.job.body["dataset"]["test"]
    job = first.other("predict", tmp_path / "job", {"test": test})
    stopping = Recorder(stop_after=lambda event: isinstance(event, Progress))
    with pytest.raises(Stopped):
        job.train(recorder=stopping)
    assert not stopping.of(ArtifactWritten)
    _result, recorder = job.train()  # and begins again
    assert recorder.of(ArtifactWritten)
