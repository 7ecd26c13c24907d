"""`null_score_diff_threshold: auto`: found on the validation set, kept in the model's config, and
used wherever that model answers."""

import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from service.contract.failures import StageError
from service.contract.stage.events import ArtifactWritten
from service.contract.tasks.parameters import QuestionAnsweringSpec
from tests.data.squad_sample import squad_dataset, squad_file
from tests.support.models import save_tiny_bert, save_tiny_xlnet
from tests.tasks.stages import StagedJob, job_of
from worker.tasks.question_answering.metrics import squad_v2
from worker.tasks.question_answering.null_threshold import FIELD, Threshold
from worker.tasks.question_answering.postprocessing import Answers

AUTO = {"version_2_with_negative": True, FIELD: "auto"}
HEADS: Mapping[str, dict[str, Any]] = {
    "span": {},
    "beam-search": {"head": "beam-search", "start_n_top": 3, "end_n_top": 3},
}
Make = Callable[..., StagedJob]


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    folder = tmp_path_factory.mktemp("models")
    return {
        "span": save_tiny_bert(folder / "bert"),
        "beam-search": save_tiny_xlnet(folder / "xlnet"),
    }


@pytest.fixture
def make_job(tmp_path: Path, models: dict[str, Path]) -> Make:
    made = iter(range(100))

    def make(
        head: str = "span",
        task: dict[str, Any] | None = None,
        model: Path | None = None,
        peft: dict[str, Any] | None = None,
        **training: Any,
    ) -> StagedJob:
        home = tmp_path / f"home-{next(made)}"
        lengths = {"max_seq_length": 96, "doc_stride": 24}
        own = {"type": "question-answering", **lengths, **HEADS[head], **(task or AUTO)}
        version = "2.0" if own.get("version_2_with_negative") else "1.1"
        limits: dict[str, Any] = {
            "max_train_samples": 6,
            "max_eval_samples": 8,
            "max_predict_samples": 6,
        }
        dataset = squad_dataset(version, test=str(squad_file("validation", version)), **limits)
        steps = {"max_steps": 2, "learning_rate": 1e-3, "logging_steps": 1, "bf16": False}
        return job_of(home, own, model or models[head], dataset, {**steps, **training}, peft=peft)

    return make


def config(job: StagedJob, folder: str = "") -> dict[str, Any]:
    path = job.workspace / "attempts" / "2" / "output" / folder / "config.json"
    content: dict[str, Any] = json.loads(path.read_text())
    return content


def golds_of(job: StagedJob, split: str = "validation") -> dict[str, list[str]]:
    examples = job.splits[split].examples
    return {row["id"]: row["answers"]["text"] for row in examples}


def best_by_trying_all(
    golds: Mapping[str, Any], texts: Mapping[str, str], odds: Mapping[str, float]
) -> tuple[float, float]:
    """(best F1, threshold), as `find_best_thresh` of the official script: with no answer at all, or
    with those of the questions with the lowest odds, each number of them tried and scored anew."""
    by_odds = sorted(odds, key=lambda key: odds[key])
    best, threshold = -1.0, 0.0
    for count in range(len(by_odds) + 1):
        answered = set(by_odds[:count])
        kept = {key: text if key in answered else "" for key, text in texts.items()}
        score = squad_v2(golds, kept, odds)["f1"]
        if score > best + 1e-9:
            best, threshold = score, odds[by_odds[count - 1]] if count else 0.0
    return best, threshold


class TestFound:
    @pytest.mark.parametrize("head", ["span", pytest.param("beam-search", marks=pytest.mark.heavy)])
    def test_it_is_the_official_scripts(self, make_job: Make, head: str) -> None:
        job = make_job(head)
        result, _ = job.train()
        odds, nbest = job.predictions("null_odds.json"), job.predictions("nbest_predictions.json")
        texts = {
            key: next((entry["text"] for entry in entries if entry["text"]), "")
            for key, entries in nbest.items()
        }
        golds = golds_of(job)
        best, threshold = best_by_trying_all(golds, texts, odds)
        assert result.metrics["eval_best_f1"] == pytest.approx(best)
        assert result.metrics["eval_best_f1_thresh"] == threshold
        assert config(job)[FIELD] == threshold
        kept = {key: "" if odds[key] > threshold else text for key, text in texts.items()}
        assert job.predictions("predictions.json") == kept
        expected = squad_v2(golds, kept, odds)
        for name in ("exact_match", "f1", "HasAns_f1", "NoAns_exact"):
            assert result.metrics[f"eval_{name}"] == expected[name]
        odds = job.predictions("test/null_odds.json")
        for key, text in job.predictions("test/predictions.json").items():
            assert (text == "") == (odds[key] > threshold)

    @pytest.mark.parametrize("seed", range(20))
    def test_of_any_answers(self, seed: int) -> None:
        """Above zero, too: while it is sought all questions have an answer."""
        draw = np.random.default_rng(seed)
        golds = {str(n): [[], ["the board"], ["report"]][draw.integers(3)] for n in range(9)}
        texts = {key: ["", "board", "report", "x"][draw.integers(4)] for key in golds}
        odds = {key: float(draw.integers(-3, 6)) for key in golds}
        threshold = Threshold(None, is_auto=True, finds=True)
        assert threshold.at_first == math.inf
        answers, config = threshold.applied("validation", golds, Answers(texts, {}, odds))
        assert config == {FIELD: best_by_trying_all(golds, texts, odds)[1]}
        kept = {key: text if odds[key] <= config[FIELD] else "" for key, text in texts.items()}
        assert answers.predictions == kept
        others = Answers({"low": "a", "high": "b"}, {}, {"low": -9.0, "high": 9.0})
        tested, nothing = threshold.applied("test", {}, others)
        assert (tested.predictions, nothing) == ({"low": "a", "high": ""}, {})

    def test_it_is_that_of_the_best_model(
        self, make_job: Make, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        best = {"load_best_model_at_end": True, "metric_for_best_model": "loss"}
        best |= {"greater_is_better": True}  # the loss falls: the first step has the highest
        often = {"eval_strategy": "steps", "eval_steps": 1, "save_steps": 1}
        evaluations = iter(range(1, 10))

        def found(_self: Threshold, _split: str, _golds: Any, answers: Answers) -> Any:
            return answers, {FIELD: next(evaluations)}

        monkeypatch.setattr(Threshold, "applied", found)
        job = make_job(max_steps=2, **often, **best)
        job.body["dataset"].pop("test")
        result, _ = job.train()
        assert result.model_step == 1
        # Before training, after each of two steps, and of the first step's weights once more.
        assert config(job)[FIELD] == 4

    def test_the_artifact_is_the_changed_file(self, make_job: Make) -> None:
        job = make_job()
        _, recorder = job.train()
        events = [e for e in recorder.of(ArtifactWritten) if e.name == "model/config.json"]
        assert events[-1].bytes == (job.workspace / events[-1].path).stat().st_size
        assert len(events) == 2

    def test_beside_an_adapter(self, make_job: Make) -> None:
        job = make_job(peft={"method": "lora", "target_modules": ["query"]})
        result, _ = job.train()
        held = config(job, "base_model_config")
        assert held[FIELD] == result.metrics["eval_best_f1_thresh"]


class TestKept:
    @pytest.mark.parametrize(
        "task", [{}, {"version_2_with_negative": True}, {"version_2_with_negative": True, FIELD: 3}]
    )
    def test_without_auto_nothing_is_kept(
        self, make_job: Make, tmp_path: Path, task: dict[str, Any]
    ) -> None:
        """Nor what the base model's training had found, of other data and weights."""
        model = save_tiny_bert(tmp_path / "model")
        content = json.loads((model / "config.json").read_text()) | {FIELD: 2.5}
        (model / "config.json").write_text(json.dumps(content))
        job = make_job(task={"max_seq_length": 96, **task}, model=model)
        job.train()
        assert FIELD not in config(job)


class TestOfAModel:
    """`mode: evaluate` and `predict`: tests/tasks/test_modes.py has whole jobs."""

    def test_that_has_one(self) -> None:
        threshold = Threshold.for_job(_not_training(), QuestionAnsweringSpec(**AUTO), _Config())
        answers = Answers({"low": "a", "high": "b"}, {}, {"low": 2.5, "high": 2.6})
        for split in ("validation", "test"):
            kept, found = threshold.applied(split, {"low": [], "high": []}, answers)
            assert (kept.predictions, found) == ({"low": "a", "high": ""}, {})

    def test_a_number_comes_first(self) -> None:
        parameters = QuestionAnsweringSpec(**{**AUTO, FIELD: 1})
        assert Threshold.for_job(_not_training(), parameters, _Config()).at_first == 1.0

    def test_that_has_none(self) -> None:
        with pytest.raises(StageError, match="Give a number") as caught:
            Threshold.for_job(_not_training(), QuestionAnsweringSpec(**AUTO), object())
        assert caught.value.failure.details == {"option": f"task.{FIELD}"}


class _Config:
    null_score_diff_threshold = 2.5


def _not_training() -> Any:
    class Spec:
        trains = False

    return Spec()
