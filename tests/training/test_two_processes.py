"""Two processes train as one does on the same global batch, for several tasks and options."""

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import torch
import yaml

from service.contract.events import Notice
from tests.data.squad_sample import squad_file
from tests.models import save_tiny_bert, save_tiny_gpt2, save_tiny_xlnet
from tests.tasks.stages import StagedJob, write_rows
from tests.training.support import Job, rows
from tests.training.two import Case, Outcome, run_on_one, run_on_two

EXAMPLES = Path(__file__).parents[2] / "examples"
TWO = {"gpus": 0, "num_processes": 2}
TEXTS = [
    "the report of the water board was read\n",
    "all who were there in the morning read the report of the board\n",
    "it was read by the board in the morning\n",
] * 9
# 37 rows of uneven lengths, so that an epoch's last batch has one example for two processes.
UNEVEN: dict[str, Any] = {"num_train_epochs": 2, "learning_rate": 1e-3, "logging_steps": 1}


@dataclass(frozen=True)
class Both:
    one: Outcome
    two: Outcome


class Suite:
    """Collects pairs of equal jobs, one of which has two processes with half of each batch."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
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

    def task(self, name: str, body: Callable[[Path], dict[str, Any]], **options: Any) -> None:
        for count, cases in ((1, self.one), (2, self.two)):
            home = self._home(name, count)
            training = {**UNEVEN, "num_train_epochs": 1, "max_steps": 3, **options}
            training = self._halved(training, count)
            resources = self._resources(count)
            job = StagedJob(home, {**body(home), "training": training, "resources": resources})
            job.prepare()
            cases[name] = Case(job.request())

    def then(self, name: str, case: Case) -> None:
        """One that only two processes run."""
        self.two[name] = case

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
        given = {"strategy": strategy} if strategy else {}
        return {**TWO, **given} if count == 2 else {"gpus": 0}


def _questions(model: Path, **task: Any) -> Callable[[Path], dict[str, Any]]:
    return lambda home: {
        "task": {"type": "question-answering", "max_seq_length": 160, "doc_stride": 40, **task},
        "model": {"name_or_path": str(model)},
        "dataset": {
            "source": "path",
            "train": str(squad_file("train", "1.1")),
            "validation": str(squad_file("validation", "1.1")),
            "max_train_samples": 9,
            "max_eval_samples": 6,
        },
    }


def _texts(task: str, model: Path) -> Callable[[Path], dict[str, Any]]:
    task_options = {"causal-lm": {"block_size": 16}, "masked-lm": {"line_by_line": True}}

    def body(home: Path) -> dict[str, Any]:
        data = [{"text": text} for text in TEXTS]
        return {
            "task": {"type": task, **task_options[task]},
            "model": {"name_or_path": str(model)},
            "dataset": {
                "source": "path",
                "train": write_rows(home / "train.jsonl", data),
                "validation": write_rows(home / "validation.jsonl", data[2:9]),
                "test": write_rows(home / "test.jsonl", data[:4]),
            },
        }

    return body


def _example(home: Path, model: Path) -> Case:
    """examples/question-answering-two-processes.yaml, with its files as paths, shortened."""
    home.mkdir()
    body = yaml.safe_load((EXAMPLES / "question-answering-two-processes.yaml").read_text())
    body["dataset"] |= {"source": "path", "max_train_samples": 8, "max_eval_samples": 4}
    for split in ("train", "validation"):
        body["dataset"][split] = str((EXAMPLES / body["dataset"][split]).resolve())
    body["model"]["name_or_path"] = str(model)
    body["training"] |= {"max_steps": 3, "logging_steps": 1, "num_train_epochs": 1}
    job = StagedJob(home, body)
    job.prepare()
    return Case(job.request())


RESUMED = {"per_device_train_batch_size": 4, "gradient_accumulation_steps": 3, "save_steps": 1}


@pytest.fixture(scope="module")
def ran(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Both]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    folder = tmp_path_factory.mktemp("two")
    suite = Suite(folder)
    suite.tiny("plain")
    accumulated = {"gradient_accumulation_steps": 3, "max_steps": 1, "max_grad_norm": 0.0}
    suite.tiny("gradients", keeps_gradients=True, learning_rate=0.0, **accumulated)
    suite.tiny("clipped", gradient_accumulation_steps=3, max_grad_norm=0.1)
    suite.tiny("grouped", group_by_length=True, gradient_accumulation_steps=2)
    suite.tiny("bf16", bf16=True)
    suite.tiny("smoothed", label_smoothing_factor=0.1, dataloader_num_workers=1)
    suite.tiny("logged seldom", logging_steps=7, include_num_input_tokens_seen="all")
    chosen = {"eval_strategy": "steps", "eval_steps": 2, "save_steps": 2, "learning_rate": 0.0}
    suite.tiny("best", **chosen, load_best_model_at_end=True, early_stopping_patience=2)
    suite.tiny("own options", strategy={"type": "ddp", "find_unused_parameters": False,
        "bucket_cap_mb": 1, "gradient_as_bucket_view": True, "broadcast_buffers": False,
        "static_graph": True, "timeout": 60})  # fmt: skip
    bert, gpt2 = save_tiny_bert(folder / "bert", dropout=0.0), folder / "gpt2"
    suite.task("question-answering", _questions(bert))
    suite.task("causal-lm", _texts("causal-lm", save_tiny_gpt2(gpt2, dropout=0.0)))
    lora = {"peft": {"method": "lora", "target_modules": ["c_attn"]}}
    suite.task("lora", lambda home: {**_texts("causal-lm", gpt2)(home), **lora})
    suite.task("masked-lm", _texts("masked-lm", bert))
    # Without unanswerable questions a third of the head gets no gradient.
    xlnet = save_tiny_xlnet(folder / "xlnet", dropout=0.0)
    suite.task("beam search", _questions(xlnet, head="beam-search", start_n_top=3, end_n_top=3))
    suite.then("example", _example(folder / "example", bert))
    suite.tiny("whole", **RESUMED, dropout=0.1, logging_steps=2)
    whole = suite.two["whole"]
    kept = whole.request.attempt_dir / "checkpoints"
    for number, step in enumerate((1, 4, 6), start=2):  # also before an epoch's shorter last step
        attempt = whole.request.attempt_dir.with_name(str(number))
        attempt.mkdir()
        changes = {"attempt_dir": attempt, "resume_from": kept / str(step)}
        request = whole.request.model_copy(update=changes)
        suite.then(f"resumed {step}", replace(whole, request=request))
    try:
        return suite.run()
    finally:
        torch.set_num_threads(before)


def assert_equal(both: Both, rel: float = 1e-6) -> None:
    assert both.two.losses == pytest.approx(both.one.losses, rel=rel)
    assert len(both.two.losses) > 1
    for step, metrics in both.one.recorder.evaluations().items():
        assert both.two.recorder.evaluations()[step] == pytest.approx(metrics, rel=max(rel, 1e-5))


class TestSameAsOne:
    @pytest.mark.parametrize(
        "name",
        [
            *("plain", "clipped", "grouped", "smoothed", "logged seldom", "best", "own options"),
            *("question-answering", "causal-lm", "masked-lm", "lora", "beam search"),
        ],
    )
    def test_losses_and_metrics(self, ran: dict[str, Both], name: str) -> None:
        assert_equal(ran[name])

    def test_bf16(self, ran: dict[str, Both]) -> None:
        """Sums of bfloat16 products are rounded in another order."""
        assert_equal(ran["bf16"], rel=1e-3)
        assert ran["bf16"].two.losses != ran["plain"].two.losses

    def test_gradients_are_those_of_the_large_batch(self, ran: dict[str, Both]) -> None:
        one, two = ran["gradients"].one.gradients, ran["gradients"].two.gradients
        assert one.keys() == two.keys()
        assert len(one) > 10
        for name, gradient in one.items():
            torch.testing.assert_close(two[name], gradient, atol=1e-6, rtol=0)

    def test_all_examples_are_counted_once(self, ran: dict[str, Both]) -> None:
        both = ran["logged seldom"]
        epochs = [outcome.result.epochs for outcome in (both.one, both.two)]
        assert epochs == [2.0, 2.0]
        rates = both.two.result.metrics
        examples = rates["train_samples_per_second"] * rates["train_runtime"]
        assert examples == pytest.approx(2 * 37)

    def test_the_same_model_is_chosen(self, ran: dict[str, Both]) -> None:
        one, two = ran["best"].one.result, ran["best"].two.result
        assert (two.best_step, two.steps) == (one.best_step, one.steps)
        assert two.steps < 20  # of the steps that two epochs have: it stopped early


class TestExample:
    def test_it_learns(self, ran: dict[str, Both]) -> None:
        result = ran["example"].two.result
        assert result.steps == 3
        assert result.metrics["eval_loss"] < result.baseline["eval_loss"]
        notices = ran["example"].two.recorder.of(Notice)
        assert any("in 2 processes in bfloat16 autocast, 3 steps" in n.message for n in notices)


class TestResume:
    @pytest.mark.parametrize("step", [1, 4, 6])
    def test_is_exact(self, ran: dict[str, Both], step: int) -> None:
        whole, resumed = ran["whole"].two, ran[f"resumed {step}"].two
        assert resumed.result.weights_sha256 == whole.result.weights_sha256
        assert resumed.losses == {s: loss for s, loss in whole.losses.items() if s > step}
        assert resumed.result.metrics["train_loss"] == whole.result.metrics["train_loss"]

    def test_a_checkpoint_holds_the_random_state_of_each(self, ran: dict[str, Both]) -> None:
        folder = ran["whole"].two.request.attempt_dir / "checkpoints" / "4"
        states = [torch.load(folder / f"rng_{rank}.pt")["torch"] for rank in (0, 1)]
        assert not torch.equal(*states)
        assert not (folder / "rng_2.pt").exists()
        manifest = json.loads((folder / "manifest.json").read_text())
        assert {"rng_0.pt", "rng_1.pt"} <= manifest["files"].keys()
