"""Two processes share the batches of an evaluation, and find what one process finds, to the last
digit: the weights are the same, since the learning rate is zero."""

import json
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from transformers import (
    AutoModelForMaskedLM,
    AutoModelForSequenceClassification,
    AutoTokenizer,
)

from service.contract.stage.events import CheckpointSaved
from tests.data.squad_sample import squad_dataset, squad_file
from tests.support.models import (
    save_tiny_bert,
    save_tiny_gpt2,
    save_tiny_llama,
    save_tiny_t5,
    save_tiny_xlnet,
)
from tests.tasks.stages import job_of
from tests.training.support.jobs import PLAIN
from tests.training.support.pairs import EXAMPLES, Both, Suite, of_rows, texts

pytestmark = [pytest.mark.long, pytest.mark.heavy, pytest.mark.timeout(900)]

UNMOVED: dict[str, Any] = {**PLAIN, "learning_rate": 0.0, "max_steps": 1, "save_strategy": "no"}
SUMMARIES = EXAMPLES / "seq2seq" / "summaries-train.jsonl"

Body = Callable[[Path], dict[str, Any]]
WITH_FSDP = ("question-answering", "masked-lm", "summarization", "chat")


def _questions(model: Path, **task: Any) -> Body:
    task = {"version_2_with_negative": True, "max_seq_length": 96, "doc_stride": 24, **task}
    limits: dict[str, Any] = {
        "max_train_samples": 4,
        "max_eval_samples": 5,
        "max_predict_samples": 3,
    }
    dataset = squad_dataset("2.0", test=str(squad_file("validation", "2.0")), **limits)
    return lambda home: job_of(home, {"type": "question-answering", **task}, model, dataset).body


def _rows(kind: str, model: Path, rows: list[dict[str, Any]], **task: Any) -> Body:
    return of_rows(kind, model, rows, rows[:7], **task)


def _summaries(model: Path) -> Body:
    rows = [json.loads(line) for line in SUMMARIES.read_text().splitlines()[:8]]
    task = {"max_source_length": 48, "max_target_length": 12, "generation": {"do_sample": True}}
    return _rows("summarization", model, rows, **task)


LABELLED = [
    {"text": f"the report was read{' again' * number}", "label": ["good", "bad"][number % 2]}
    for number in range(9)
]
TAGGED = [
    {"tokens": ["the", "report", *["again"] * number], "tags": ["O", "B-X", *["I-X"] * number]}
    for number in range(9)
]


TALKS = [
    {"prompt": f"the report{' of the board' * number}", "completion": f"was read {number}"}
    for number in range(9)
]


def _tasks(suite: Suite, folder: Path) -> None:
    bert, gpt2 = save_tiny_bert(folder / "bert"), save_tiny_gpt2(folder / "gpt2")
    words = [json.loads(line)["text"] for line in SUMMARIES.read_text().splitlines()[:60]]
    bodies: Mapping[str, Body] = {
        "question-answering": _questions(bert),
        "beam search": _questions(
            save_tiny_xlnet(folder / "xlnet"), head="beam-search", start_n_top=3, end_n_top=3
        ),
        "causal-lm": texts("causal-lm", gpt2),
        "masked-lm": texts("masked-lm", bert),
        "text-classification": _rows("text-classification", bert, LABELLED),
        "token-classification": _rows("token-classification", bert, TAGGED),
        "summarization": _summaries(save_tiny_t5(folder / "t5", words)),
        "chat": _rows(
            "chat",
            save_tiny_llama(folder / "llama"),
            TALKS,
            packing="bfd",
            generate={"max_new_tokens": 8, "exact_match": r"read (\d+)", "max_samples": 5},
        ),
    }
    for name, body in bodies.items():
        suite.task(name, body, **UNMOVED, per_device_eval_batch_size=2)
    for name in WITH_FSDP:
        suite.task(f"{name} fsdp", bodies[name], "fsdp", **UNMOVED, per_device_eval_batch_size=2)


def _without_training(suite: Suite, folder: Path) -> None:
    """Jobs that only evaluate or predict; the other weights of their models are random."""
    bert = folder / "bert"
    masked = AutoModelForMaskedLM.from_pretrained(bert)
    masked.save_pretrained(folder / "masked")
    names = {"id2label": {0: "good", 1: "bad"}, "label2id": {"good": 0, "bad": 1}}
    classifier = AutoModelForSequenceClassification.from_pretrained(bert, **names)
    classifier.save_pretrained(folder / "classifier")
    for name in ("masked", "classifier"):
        AutoTokenizer.from_pretrained(bert).save_pretrained(folder / name)
    prompts = [{"text": "the report" + " of the board" * number} for number in range(7)]
    gaps = [{"text": "the [MASK]" + " of [MASK] board" * number} for number in range(7)]
    bodies: Mapping[str, Body] = {
        "evaluated": _rows("text-classification", folder / "classifier", LABELLED),
        "prompts": _prediction("causal-lm", folder / "gpt2", prompts, max_new_tokens=8),
        "answers": _prediction("chat", folder / "llama", TALKS, generate={"max_new_tokens": 8}),
        "masks": _prediction("masked-lm", folder / "masked", gaps),
    }
    for name, body in bodies.items():
        for strategy in (None, "fsdp"):
            options: dict[str, Any] = {**PLAIN, "per_device_eval_batch_size": 2}
            suite.task(f"{name} {strategy}", _of_mode(name, body), strategy, **options)


def _of_mode(name: str, body: Body) -> Body:
    mode = "evaluate" if name == "evaluated" else "predict"
    return lambda home: {**body(home), "mode": mode}


def _prediction(kind: str, model: Path, rows: list[dict[str, Any]], **task: Any) -> Body:
    return lambda home: job_of(home, {"type": kind, **task}, model, {"test": rows}).body


def _tiny(suite: Suite) -> None:
    """Five rows to validate on, and three to predict."""
    unmoved: dict[str, Any] = {"learning_rate": 0.0, "max_steps": 1, "save_strategy": "no"}
    suite.tiny("uneven", **unmoved, per_device_eval_batch_size=2)
    suite.tiny("one batch", **unmoved, per_device_eval_batch_size=64)
    suite.tiny("one batch fsdp", **unmoved, per_device_eval_batch_size=64, strategy="fsdp")
    moving: dict[str, Any] = {
        "max_steps": 6,
        "eval_strategy": "steps",
        "eval_steps": 2,
        "save_steps": 6,
    }
    suite.tiny("left", **moving, per_device_eval_batch_size=2)
    # One batch of the second process in the evaluation before training, one in the next.
    suite.two["left"] = case = replace(suite.two["left"], stops_after=2)
    attempt = case.request.attempt_dir.with_name("2")
    attempt.mkdir()
    kept = case.request.attempt_dir / "checkpoints" / "2"
    request = case.request.model_copy(update={"attempt_dir": attempt, "resume_from": kept})
    suite.then("resumed", replace(case, request=request, stops_after=None))


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory, processes: None) -> dict[str, Both]:
    folder = tmp_path_factory.mktemp("shared")
    suite = Suite(folder)
    _tiny(suite)
    _tasks(suite, folder)
    _without_training(suite, folder)
    return suite.run()


def found(metrics: Mapping[str, float]) -> dict[str, float]:
    timed = ("_runtime", "_per_second")
    return {n: v for n, v in metrics.items() if n.startswith("eval_") and not n.endswith(timed)}


def files(folder: Path) -> dict[str, bytes]:
    paths = (path for path in folder.rglob("*") if path.is_file())
    return {path.relative_to(folder).as_posix(): path.read_bytes() for path in paths}


TASKS = [
    *("question-answering", "beam search", "causal-lm", "masked-lm", "text-classification"),
    *("token-classification", "summarization", "chat"),
]
FSDP = [f"{name} fsdp" for name in WITH_FSDP]
TINY = ["uneven", "one batch", "one batch fsdp"]
EVALUATED = ["evaluated None", "evaluated fsdp"]
PREDICTED = [f"{kind} {how}" for kind in ("prompts", "answers", "masks") for how in (None, "fsdp")]


class TestSameAsOne:
    @pytest.mark.parametrize("name", [*TASKS, *FSDP, *TINY, *EVALUATED])
    def test_metrics(self, ran: dict[str, Both], name: str) -> None:
        one, two = ran[name].one.result, ran[name].two.result
        assert found(two.metrics) == found(one.metrics)
        assert found(two.baseline) == found(one.baseline)
        assert "eval_loss" in found(one.metrics)

    @pytest.mark.parametrize("name", [*TASKS, *FSDP, *TINY, *EVALUATED, *PREDICTED])
    def test_predictions(self, ran: dict[str, Both], name: str) -> None:
        one, two = ran[name].one, ran[name].two
        assert two.result.samples == one.result.samples
        written = files(one.request.attempt_dir / "predictions")
        assert files(two.request.attempt_dir / "predictions") == written
        assert written


class TestShares:
    @pytest.mark.parametrize("name", [*TASKS, *FSDP, "uneven", *EVALUATED, *PREDICTED[:2]])
    def test_each_process_computes_every_other_batch(self, ran: dict[str, Both], name: str) -> None:
        one, two = ran[name].one.evaluated, ran[name].two.evaluated
        assert two == [number for number in one if number % 2 == 0]
        assert len(two) < len(one)


class TestLeft:
    def test_all_stop_in_the_middle_when_one_is_asked(self, ran: dict[str, Both]) -> None:
        two = ran["left"].two
        # Three batches, two for the first process; of the second evaluation only one.
        assert two.evaluated == [0, 2, 0]
        assert [event.step for event in two.recorder.of(CheckpointSaved)] == [2]
        assert list(two.recorder.evaluations()) == [0]

    def test_the_evaluation_is_the_resumed_training_s_first(self, ran: dict[str, Both]) -> None:
        one, resumed = ran["left"].one, ran["resumed"].two
        expected = {step: found(values) for step, values in one.recorder.evaluations().items()}
        del expected[0]
        again = {step: found(values) for step, values in resumed.recorder.evaluations().items()}
        assert again == {step: pytest.approx(values) for step, values in expected.items()}
        assert list(again) == [2, 4, 6]
