"""Pairs of equal jobs: one process against two that have half of each batch."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml
from transformers import AutoModelForCausalLM

from service.contract.stage.events import Metric
from tests.data.squad_sample import squad_dataset
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import Job, rows
from tests.training.support.two import Case, Outcome, run_on_one, run_on_two

EXAMPLES = Path(__file__).parents[3] / "examples"
TWO = {"gpus": 0, "num_processes": 2}
TEXTS = [
    "the report of the water board was read\n",
    "all who were there in the morning read the report of the board\n",
    "it was read by the board in the morning\n",
] * 9
# 37 rows of uneven lengths, so that an epoch's last batch has one example for two processes.
UNEVEN: dict[str, Any] = {
    "num_train_epochs": 2,
    "learning_rate": 1e-3,
    "logging_steps": 1,
    "bf16": False,
}

CHOSEN: dict[str, Any] = {
    "eval_strategy": "steps",
    "eval_steps": 2,
    "save_steps": 2,
    "learning_rate": 0.0,
    "load_best_model_at_end": True,
    "early_stopping_patience": 2,
}
"""With `SameAsOne`, of the case `best`."""


@dataclass(frozen=True)
class Both:
    one: Outcome
    two: Outcome


def with_heavy(request: pytest.FixtureRequest) -> bool:
    """Whether heavy tests of this file run, which need further pairs."""
    items = [item for item in request.session.items if item.path == request.path]
    return any(item.get_closest_marker("heavy") for item in items)


def heavy(*names: str) -> list[Any]:
    """Parameters whose pairs are trained only `with_heavy`."""
    return [pytest.param(name, marks=pytest.mark.heavy) for name in names]


class Suite:
    """Collects pairs of equal jobs; one job of a pair has two processes with half of each batch."""

    def __init__(self, folder: Path, strategy: Any = None) -> None:
        """`strategy`: of all jobs of two processes that name no other one."""
        self._folder = folder
        self._strategy = strategy
        self.one: dict[str, Case] = {}
        self.two: dict[str, Case] = {}

    def tiny(self, name: str, *, keeps_gradients: bool = False, **options: Any) -> None:
        parts = {key: options.pop(key) for key in ("dropout", "strategy") if key in options}
        for count, cases in ((1, self.one), (2, self.two)):
            job = Job(
                self._home(name, count),
                self._halved({**UNEVEN, **options}, count),
                dropout=parts.get("dropout", 0.0),
                validation=rows(5, seed=9),
                test=rows(3, seed=6),
                resources=self._resources(count, parts.get("strategy")),
            )
            cases[name] = Case(job.request(), is_tiny=True, keeps_gradients=keeps_gradients)

    def task(
        self,
        name: str,
        body: Callable[[Path], dict[str, Any]],
        strategy: Any = None,
        **options: Any,
    ) -> None:
        for count, cases in ((1, self.one), (2, self.two)):
            home = self._home(name, count)
            training = {**UNEVEN, "num_train_epochs": 1, "max_steps": 3, **options}
            training = self._halved(training, count)
            resources = self._resources(count, strategy)
            job = StagedJob(home, {**body(home), "training": training, "resources": resources})
            job.prepare()
            cases[name] = Case(job.request())

    def then(self, name: str, case: Case) -> None:
        """One that only two processes run."""
        self.two[name] = case

    def resume(self, name: str, whole: str, step: int, attempt: int = 2) -> None:
        """From a checkpoint of one of two processes."""
        case = self.two[whole]
        folder = case.request.attempt_dir.with_name(str(attempt))
        folder.mkdir()
        checkpoint = case.request.attempt_dir / "checkpoints" / str(step)
        changes = {"attempt_dir": folder, "resume_from": checkpoint}
        self.then(name, replace(case, request=case.request.model_copy(update=changes)))

    def run(self) -> dict[str, Both]:
        alone = {name: run_on_one(case) for name, case in self.one.items()}
        together = run_on_two(self._folder, self.two)
        return {n: Both(alone.get(n, outcome), outcome) for n, outcome in together.items()}

    def _home(self, name: str, count: int) -> Path:
        home = self._folder / f"{name}-{count}".replace(" ", "-")
        home.mkdir()
        return home

    def _halved(self, training: dict[str, Any], count: int) -> dict[str, Any]:
        size = training.get("per_device_train_batch_size", 4)
        return {**training, "per_device_train_batch_size": size // count}

    def _resources(self, count: int, strategy: Any = None) -> dict[str, Any]:
        strategy = strategy or self._strategy
        given = {"strategy": strategy} if strategy else {}
        return {**TWO, **given} if count == 2 else {"gpus": 0}


def questions(model: Path, **task: Any) -> Callable[[Path], dict[str, Any]]:
    task = {"type": "question-answering", "max_seq_length": 160, "doc_stride": 40, **task}
    dataset = squad_dataset("1.1", max_train_samples=9, max_eval_samples=6)
    return lambda home: job_of(home, task, model, dataset).body


def texts(task: str, model: Path) -> Callable[[Path], dict[str, Any]]:
    task_options: dict[str, dict[str, Any]] = {
        "causal-lm": {"block_size": 16},
        "masked-lm": {"line_by_line": True},
    }

    data = [{"text": text} for text in TEXTS]
    dataset = {"train": data, "validation": data[2:9], "test": data[:4]}
    return lambda home: job_of(home, {"type": task, **task_options[task]}, model, dataset).body


def of_rows(
    kind: str, model: Path, data: list[Any], validation: list[Any], **task: Any
) -> Callable[[Path], dict[str, Any]]:
    dataset = {"train": data, "validation": validation}
    return lambda home: job_of(home, {"type": kind, **task}, model, dataset).body


def conversations(model: Path, **task: Any) -> Callable[[Path], dict[str, Any]]:
    rows = [{"prompt": text, "completion": text[:30]} for text in TEXTS]
    return of_rows("chat", model, rows, rows[2:9], **task)


def answers(kind: str, model: Path, **task: Any) -> Callable[[Path], dict[str, Any]]:
    """Pairs of a better and a worse answer."""
    rows = [{"prompt": text[:40], "chosen": text[:30], "rejected": text[10:60]} for text in TEXTS]
    return of_rows(kind, model, rows, rows[2:9], **task)


def judged(model: Path, **task: Any) -> Callable[[Path], dict[str, Any]]:
    """Single answers, every second one good; so few that one process has none of an epoch's last
    batch."""
    rows = [
        {"prompt": text[:40], "completion": text[10 : 20 + 5 * number], "label": number % 2 == 0}
        for number, text in enumerate(TEXTS[:5])
    ]
    task = {"type": "preference", "loss_type": "kto", **task}
    return lambda home: job_of(home, task, model, {"train": rows}).body


def example(home: Path, name: str, model: Path) -> Case:
    """A question-answering example, with its files as paths, shortened."""
    home.mkdir()
    body = yaml.safe_load((EXAMPLES / name).read_text())
    body["dataset"] |= {"source": "path", "max_train_samples": 8, "max_eval_samples": 4}
    for split in ("train", "validation"):
        body["dataset"][split] = str((EXAMPLES / body["dataset"][split]).resolve())
    body["model"]["name_or_path"] = str(model)
    body["training"] |= {"max_steps": 3, "logging_steps": 1, "num_train_epochs": 1}
    job = StagedJob(home, body)
    job.prepare()
    return Case(job.request())


def assert_equal(both: Both, rel: float = 1e-6) -> None:
    assert both.two.losses == pytest.approx(both.one.losses, rel=rel)
    assert len(both.two.losses) > 1
    for step, metrics in both.one.recorder.evaluations().items():
        # Rewards are differences of log-probabilities, whose rounding differs between CPUs.
        wanted = pytest.approx(metrics, rel=max(rel, 1e-5), abs=2e-7)
        assert both.two.recorder.evaluations()[step] == wanted


def assert_equal_values(both: Both, *names: str) -> None:
    """Of what the objective logs in addition to its loss; not every step has each of them."""
    one, two = (
        [event.values for event in each.recorder.of(Metric)] for each in (both.one, both.two)
    )
    assert any(names[0] in values for values in one)
    for left, right in zip(one, two, strict=True):
        known = {name: left[name] for name in names if name in left}
        assert {n: right[n] for n in names if n in right} == pytest.approx(known, abs=1e-5)


def assert_equal_gradients(both: Both) -> None:
    one, two = both.one.gradients, both.two.gradients
    assert one.keys() == two.keys()
    assert len(one) > 10
    for name, gradient in one.items():
        torch.testing.assert_close(two[name], gradient, atol=1e-6, rtol=0)


def adapted(model: Path, **peft: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda home: {**texts("causal-lm", model)(home), "peft": peft}


def assert_resumed(resumed: Outcome, whole: Outcome, step: int) -> None:
    """After `step` each number is that of the uninterrupted training."""
    assert resumed.result.weights_sha256 == whole.result.weights_sha256
    assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > step}
    assert resumed.losses
    assert resumed.result.metrics["train_loss"] == whole.result.metrics["train_loss"]


def assert_written_in_the_background(outcome: Outcome) -> None:
    """All checkpoints but the last, after which there is nothing to do meanwhile."""
    writers = outcome.writers
    assert writers == ["checkpoint"] * (len(writers) - 1) + ["MainThread"]
    assert len(writers) > 1


def assert_same_model(both: Both) -> None:
    one, two = (
        AutoModelForCausalLM.from_pretrained(each.request.workspace / str(each.result.output_dir))
        for each in (both.one, both.two)
    )
    assert type(two) is type(one)
    expected = dict(one.named_parameters())
    for name, value in two.named_parameters():
        torch.testing.assert_close(value, expected[name], atol=1e-6, rtol=1e-5)


class SameAsOne:
    """What holds for each way to train on two processes, whose results the fixture `ran` has."""

    def test_gradients_are_those_of_the_large_batch(self, ran: dict[str, Both]) -> None:
        assert_equal_gradients(ran["gradients"])

    def test_the_same_model_is_chosen(self, ran: dict[str, Both]) -> None:
        one, two = ran["best"].one.result, ran["best"].two.result
        assert (two.best_step, two.steps) == (one.best_step, one.steps)
