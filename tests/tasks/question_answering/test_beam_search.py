"""XLNet's beam-search head: features, loss, and answers as the reference scripts find them."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml
from pydantic import ValidationError
from transformers import AutoTokenizer, XLNetForQuestionAnswering

from service.contract.failures import FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.tasks.parameters import QuestionAnsweringSpec
from tests.data.squad_sample import squad_dataset
from tests.support.models import save_tiny_bert, save_tiny_xlnet
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import fails_with
from worker.tasks import registry
from worker.tasks.base import load_splits
from worker.tasks.question_answering.beam_search import Beams, choose, spans_of
from worker.tasks.question_answering.metrics import squad_v2
from worker.tasks.question_answering.postprocessing import SpanOptions

SQUAD = Path(__file__).resolve().parents[3] / "examples" / "squad"

Make = Callable[..., StagedJob]


@pytest.fixture(scope="module")
def xlnet(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_xlnet(tmp_path_factory.mktemp("xlnet"))


@pytest.fixture
def make_job(tmp_path: Path, xlnet: Path, trainings: None) -> Make:
    made = iter(range(100))

    def make(
        task: dict[str, Any] | None = None,
        training: dict[str, Any] | None = None,
        model: Path = xlnet,
    ) -> StagedJob:
        home = tmp_path / f"home-{next(made)}"
        parameters = {
            "type": "question-answering",
            "head": "beam-search",
            "version_2_with_negative": True,
            "max_seq_length": 160,
            "doc_stride": 40,
            "start_n_top": 4,
            "end_n_top": 3,
            **(task or {}),
        }
        version = "2.0" if parameters["version_2_with_negative"] else "1.1"
        dataset = squad_dataset(version, SQUAD, max_train_samples=30, max_eval_samples=8)
        options = {"max_steps": 1, "learning_rate": 1e-3, "logging_steps": 1, "bf16": False}
        return job_of(home, parameters, model, dataset, options | (training or {}))

    return make


# ---- the reference: loops over one window at a time ---------------------------------------------


def slow_answers(
    questions: list[dict[str, Any]],
    windows: list[dict[str, Any]],
    options: SpanOptions,
    sizes: tuple[int, int],
) -> tuple[dict[str, list[dict[str, Any]]], dict[str, float]]:
    """(n-best, lowest null score) of each question, whose windows hold the model's output."""
    nbest, odds = {}, {}
    for number, question in enumerate(questions):
        own = [window for window in windows if window["example"] == number]
        found = []
        for window in own:
            for i in range(sizes[0]):
                for j in range(sizes[1]):
                    flat = i * sizes[1] + j
                    start, end = int(window["starts"][i]), int(window["ends"][flat])
                    spots = window["offsets"]
                    if not (0 <= start < len(spots) and 0 <= end < len(spots)):
                        continue
                    if spots[start][0] < 0 or spots[end][0] < 0:
                        continue
                    if end < start or end - start + 1 > options.max_answer_length:
                        continue
                    score = window["start_scores"][i] + window["end_scores"][flat]
                    text = question["context"][spots[start][0] : spots[end][1]]
                    found.append({"text": text, "score": score})
        found.sort(key=lambda entry: entry["score"], reverse=True)
        found = found[: options.n_best_size]
        weights = np.exp([entry["score"] - found[0]["score"] for entry in found])
        for entry, weight in zip(found, weights, strict=True):
            entry["probability"] = weight / weights.sum()
        nbest[question["id"]] = found
        odds[question["id"]] = min(float(window["null"]) for window in own)
    return nbest, odds


class TestAnswers:
    @pytest.mark.parametrize("seed", range(5))
    def test_are_those_of_the_loops(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        sizes, options = (4, 3), SpanOptions(n_best_size=5, max_answer_length=6)
        questions = [{"id": f"q{n}", "context": "abcdefghij" * 3} for n in range(3)]
        examples = [0, 0, 1, 2, 2, 2]
        windows: list[dict[str, Any]] = []
        for example in examples:
            length = int(draw.integers(12, 20))
            begins = [-1] * 4 + [int(n) for n in range(length - 6)] + [-1, -1]
            windows.append(
                {
                    "example": example,
                    "offsets": [(b, b + 2 if b >= 0 else -1) for b in begins],
                    "starts": draw.integers(-2, 20, sizes[0]),
                    "ends": draw.integers(-2, 20, sizes[0] * sizes[1]),
                    # Few values, so that some scores are equal.
                    "start_scores": draw.integers(1, 4, sizes[0]).astype(np.float32) / 8,
                    "end_scores": draw.integers(1, 4, 12).astype(np.float32) / 8,
                    "null": np.float32(draw.normal()),
                }
            )
        nbest, odds = slow_answers(questions, windows, options, sizes)
        spans = spans_of(
            Beams(
                **{
                    name: np.stack([window[name] for window in windows])
                    for name in ("start_scores", "starts", "end_scores", "ends")
                },
                nulls=np.stack([window["null"] for window in windows]),
            ),
            list(range(len(windows))),
            {
                "example": examples,
                "offset_start": [[spot[0] for spot in w["offsets"]] for w in windows],
                "offset_end": [[spot[1] for spot in w["offsets"]] for w in windows],
            },
            options,
            sizes,
        )
        nulls = np.array(list(odds.values()), dtype=np.float32)
        answers = choose(questions, spans, nulls, options, null_threshold=1e9)
        for key, expected in nbest.items():
            found = answers.nbest[key]
            assert [entry["text"] for entry in found] == [entry["text"] for entry in expected]
            assert [entry["probability"] for entry in found] == pytest.approx(
                [entry["probability"] for entry in expected], rel=1e-6
            )
            assert answers.predictions[key] == (expected[0]["text"] if expected else "")
        assert answers.null_odds == odds

    def test_no_answer_above_the_threshold(self) -> None:
        spans = spans_of(
            Beams(
                start_scores=np.ones((2, 1), np.float32),
                starts=np.zeros((2, 1), np.int64),
                end_scores=np.ones((2, 1), np.float32),
                ends=np.zeros((2, 1), np.int64),
                nulls=np.zeros(2, np.float32),
            ),
            [0, 1],
            {"example": [0, 1], "offset_start": [[0], [0]], "offset_end": [[2], [2]]},
            SpanOptions(3, 3),
            (1, 1),
        )
        questions = [{"id": "a", "context": "yes"}, {"id": "b", "context": "no"}]
        nulls = np.array([0.5, 0.4], dtype=np.float32)
        answers = choose(questions, spans, nulls, SpanOptions(3, 3), null_threshold=0.45)
        assert answers.predictions == {"a": "", "b": "no"}


class TestHead:
    def objective(self, job: StagedJob, xlnet: Path) -> tuple[Any, Any, list[Any]]:
        prepared = job.prepare()
        spec = JobSpec.model_validate(job.body)
        torch.manual_seed(0)
        model = XLNetForQuestionAnswering.from_pretrained(xlnet, start_n_top=4, end_n_top=3).eval()
        splits = load_splits(prepared.prepared_dir)
        tokenizer = AutoTokenizer.from_pretrained(xlnet)
        task = registry.get(spec.task.variant())
        objective = task.bind(spec, tokenizer, model, splits)
        features = splits["train"].features
        short = min(range(len(features)), key=lambda index: len(features[index]["input_ids"]))
        long = next(i for i in range(len(features)) if len(features[i]["input_ids"]) == 160)
        return objective, model, [features[short], features[long]]

    def test_batches(self, make_job: Make, xlnet: Path) -> None:
        objective, _, features = self.objective(make_job(), xlnet)
        batch = objective.collate(features)
        short = len(features[0]["input_ids"])
        assert short < 160
        assert batch["input_ids"].shape == (2, 160)
        assert batch["attention_mask"][0].sum() == short  # padded on the left
        assert batch["cls_index"].tolist() == [159, 159]
        offsets = features[0]["offset_start"]
        allowed = [place + 160 - short for place, offset in enumerate(offsets) if offset >= 0]
        assert (batch["p_mask"][0] == 0).nonzero().flatten().tolist() == [*allowed, 159]
        at_null = batch["start_positions"] == 159
        assert batch["is_impossible"].tolist() == at_null.float().tolist()
        assert batch["token_type_ids"][0, -1] == 2

    def test_loss_with_v2(self, make_job: Make, xlnet: Path) -> None:
        objective, model, features = self.objective(make_job(), xlnet)
        batch = objective.collate(features)
        expected = 0.0
        for feature in features:  # one by one, without any padding
            inputs = objective.collate([feature])
            ids, types = inputs["input_ids"], inputs["token_type_ids"]
            hidden = model.transformer(ids, token_type_ids=types)[0]
            mask, start, end = inputs["p_mask"], inputs["start_positions"], inputs["end_positions"]
            starts = model.start_logits(hidden, p_mask=mask)
            ends = model.end_logits(hidden, start_positions=start, p_mask=mask)
            null = model.answer_class(
                hidden, start_positions=start, cls_index=torch.tensor([ids.shape[1] - 1])
            )
            cross = torch.nn.functional.cross_entropy
            span = (cross(starts, start) + cross(ends, end)) / 2
            impossible = torch.tensor([float(start.item() == ids.shape[1] - 1)])
            sort = torch.nn.functional.binary_cross_entropy_with_logits(null, impossible)
            expected += (span + 0.5 * sort).item()
        assert objective.item_count(batch) == 2
        assert objective.loss_sum(model, batch).item() == pytest.approx(expected, rel=1e-5)

    def test_without_v2_there_is_nothing_impossible(self, make_job: Make, xlnet: Path) -> None:
        job = make_job({"version_2_with_negative": False})
        objective, _, features = self.objective(job, xlnet)
        assert "is_impossible" not in objective.collate(features)

    def test_a_window_shorter_than_the_beams(self, make_job: Make, xlnet: Path) -> None:
        job = make_job({"start_n_top": 150, "end_n_top": 3})
        objective, _, features = self.objective(job, xlnet)
        assert objective.collate([features[0]])["input_ids"].shape == (1, 150)


class TestJob:
    LOSSES = (
        5.02396631,
        4.86012268,
        4.81309986,
        4.63430214,
        4.56530952,
        4.53843832,
        4.61284161,
        4.37312508,
        4.38969803,
        4.41777277,
    )
    EVAL_LOSS = 4.22216178

    def test_predictions_are_the_finished_models(self, make_job: Make) -> None:
        # Until it distinguishes the places of a text: among equal scores rounding would decide.
        trained = {"max_steps": 30, "learning_rate": 1e-2}
        job = make_job({"null_score_diff_threshold": 1e6}, trained)
        result, _ = job.train()
        model = XLNetForQuestionAnswering.from_pretrained(job.output(result)).eval()
        assert (model.config.start_n_top, model.config.end_n_top) == (4, 3)
        data = job.splits["validation"]
        windows = []
        for feature in data.features:
            begins, ids = feature["offset_start"], feature["input_ids"]
            mask = [float(begin < 0) for begin in begins]
            mask[feature["null_token"]] = 0.0
            with torch.no_grad():
                output = model(
                    torch.tensor([ids]),
                    token_type_ids=torch.tensor([feature["token_type_ids"]]),
                    cls_index=torch.tensor([feature["null_token"]]),
                    p_mask=torch.tensor([mask]),
                )
            windows.append(
                {
                    "example": feature["example"],
                    "offsets": list(zip(begins, feature["offset_end"], strict=True)),
                    "starts": output.start_top_index[0].tolist(),
                    "ends": output.end_top_index[0].tolist(),
                    "start_scores": output.start_top_log_probs[0].numpy(),
                    "end_scores": output.end_top_log_probs[0].numpy(),
                    "null": output.cls_logits[0],
                }
            )
        nbest, odds = slow_answers(list(data.examples), windows, SpanOptions(20, 30), (4, 3))
        assert job.predictions("null_odds.json") == pytest.approx(odds, rel=1e-4)
        assert job.predictions() == {
            key: entries[0]["text"] if entries else "" for key, entries in nbest.items()
        }
        written = job.predictions("nbest_predictions.json")
        for key, entries in nbest.items():
            assert len(written[key]) == len(entries)
        assert "eval_best_f1_thresh" in result.metrics

    def test_a_threshold_of_one_gives_the_scripts_metrics(self, make_job: Make) -> None:
        job = make_job({"null_score_diff_threshold": 1.0}, {"max_steps": 3})
        result, _ = job.train()
        nbest = job.predictions("nbest_predictions.json")
        odds = job.predictions("null_odds.json")
        examples = job.splits["validation"].examples
        golds = {row["id"]: row["answers"]["text"] for row in examples}
        texts = {key: entries[0]["text"] if entries else "" for key, entries in nbest.items()}
        raw = squad_v2(golds, texts, odds)
        exact = 0.0
        for key, answers in golds.items():
            alone = squad_v2({key: answers}, texts, {key: odds[key]})["exact_match"]
            exact += alone if odds[key] <= 1.0 else 100.0 * (not answers)
        assert result.metrics["eval_exact_match"] == pytest.approx(exact / len(golds))
        assert result.metrics["eval_best_f1"] == raw["best_f1"]

    def test_the_example(self, make_job: Make) -> None:
        spec = SQUAD.parent / "question-answering-beam-search.yaml"
        example = yaml.safe_load(spec.read_text(encoding="utf-8"))
        job = make_job()
        job.body["task"] = example["task"] | {"max_seq_length": 160, "doc_stride": 40}
        job.body["training"] = example["training"] | {"max_steps": 2, "bf16": False}
        result, _ = job.train()
        assert "eval_best_f1" in result.metrics

    def test_golden_losses(self, make_job: Make) -> None:
        result, recorder = make_job(training={"max_steps": 10, "padding_free": False}).train()
        losses = list(recorder.train_values("loss").values())
        assert losses == pytest.approx(self.LOSSES, rel=1e-5)
        assert result.metrics["eval_loss"] == pytest.approx(self.EVAL_LOSS, rel=1e-4)
        assert result.metrics["eval_exact_match"] == 37.5

    def test_resumes_bit_by_bit(self, make_job: Make) -> None:
        job = make_job(training={"max_steps": 4, "save_steps": 2})
        whole, _ = job.train()
        resumed, _ = job.train(attempt=3, resume_from=job.checkpoint(2))
        assert resumed.weights_sha256 == whole.weights_sha256

    def test_other_architectures_are_refused(self, make_job: Make, tmp_path: Path) -> None:
        job = make_job(model=save_tiny_bert(tmp_path / "bert"))
        with fails_with(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            "'bert' has no head for question-answering/beam-search",
        ):
            job.prepare()


class TestParameters:
    def test_beams(self) -> None:
        assert QuestionAnsweringSpec(head="beam-search").beams() == (5, 5)
        given = QuestionAnsweringSpec(head="beam-search", start_n_top=3, end_n_top=7)
        assert given.beams() == (3, 7)

    def test_a_model_from_scratch_has_the_head_or_not(self) -> None:
        body: dict[str, Any] = {
            "task": {"type": "question-answering", "head": "beam-search"},
            "model": {"config": {"model_type": "xlnet"}, "tokenizer_name": "org/tokenizer"},
            "dataset": {"source": "hub", "name": "org/data"},
        }
        assert JobSpec.model_validate(body).variant() == "question-answering/beam-search"
        body["model"] |= {"config": {"model_type": "bert"}}
        message = (
            "`task.head: beam-search` needs a model of type `xlnet`, and `model.config.model_type` "
            "is `bert`: use `span`"
        )
        with pytest.raises(ValidationError, match=message):
            JobSpec.model_validate(body)

    @pytest.mark.parametrize(
        "task",
        [
            {"start_n_top": 3},
            {"end_n_top": 3},
            {"head": "beam-search", "end_n_top": 400},
        ],
    )
    def test_refused(self, task: dict[str, Any]) -> None:
        with pytest.raises(ValidationError, match="end_n_top"):
            QuestionAnsweringSpec(**task)
