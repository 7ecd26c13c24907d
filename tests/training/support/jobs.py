"""A tiny causal language model, a task of the test's own, and the real train stage around both."""

import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from accelerate.state import AcceleratorState, GradientState
from datasets.arrow_writer import ArrowWriter

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import CheckpointSaved, Metric, Notice, StageEvent
from service.contract.stage.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Stage
from tests.support.models import made_once, train_tokenizer
from worker.stages.base import SoftStop
from worker.stages.train import stage as train
from worker.tasks import registry
from worker.tasks.base import EXAMPLES_FILE, FEATURES_FILE, PreparedSplit
from worker.tasks.language_modeling.causal_lm import CausalLM
from worker.training.loss import label_smoothing
from worker.training.objective import Batch, Evaluation, Features, Forward, LossSum, Objective

VOCABULARY = 48
PLAIN: dict[str, Any] = {"bf16": False, "padding_free": False}
"""Without what depends on the machine or draws other numbers for dropout: for golden numbers, and
for comparisons with others."""
IGNORED = -100


class TinyObjective(Objective):
    """Next-token prediction; evaluation reports the mean loss and the share of right tokens."""

    def __init__(self, splits: Mapping[str, PreparedSplit]) -> None:
        self._splits = splits
        self.train_features: Features = splits["train"].features

    def collate(self, features: list[Mapping[str, Any]]) -> Batch:
        rows = [torch.tensor(feature["input_ids"]) for feature in features]
        pad = torch.nn.utils.rnn.pad_sequence
        labels = pad(rows, batch_first=True, padding_value=IGNORED)
        return {
            "input_ids": pad(rows, batch_first=True),
            "attention_mask": (labels != IGNORED).long(),
            "labels": labels,
        }

    def item_count(self, batch: Batch) -> int:
        return int((batch["labels"][:, 1:] != IGNORED).sum())

    def loss_sum(self, model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        logits, labels = self.logits_and_labels(model, batch)
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), labels.flatten(), reduction="sum"
        )

    def smoothed(self, factor: float) -> LossSum:
        return label_smoothing.of_logits(self.logits_and_labels, factor)

    def logits_and_labels(
        self, model: torch.nn.Module, batch: Batch
    ) -> tuple[torch.Tensor, torch.Tensor]:
        logits = model(batch["input_ids"], attention_mask=batch["attention_mask"]).logits
        return logits[:, :-1], batch["labels"][:, 1:]

    def evaluate(self, split: str, forward: Forward, folder: Path) -> Evaluation | None:
        if split not in self._splits:
            return None
        # A careless task: it draws from every generator, which the training must not notice.
        np.random.rand(3)
        torch.rand(3)
        right, loss, tokens, seen = 0, 0.0, 0, []
        features = self._splits[split].features
        for indices, output in forward(features, self.collate):
            seen += indices
            loss += float(output.loss) * len(indices)
            labels = self.collate([features[index] for index in indices])["labels"][:, 1:]
            right += int((output.logits[:, :-1].argmax(-1) == labels).sum())
            tokens += int((labels != IGNORED).sum())
        assert sorted(seen) == list(range(len(features)))
        path = folder / f"{split}.json"
        path.write_text(json.dumps({"right": right}))
        return Evaluation(
            {"loss": loss / len(features), "accuracy": right / tokens},
            {f"{split}.json": path},
            [{"right": right}],
        )


class TinyTask(CausalLM):
    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> TinyObjective:
        return TinyObjective(splits)


def tiny_model(dropout: float = 0.1) -> transformers.GPT2LMHeadModel:
    transformers.set_seed(0)
    config = transformers.GPT2Config(
        vocab_size=VOCABULARY,
        n_positions=32,
        n_embd=32,
        n_layer=2,
        n_head=2,
        resid_pdrop=dropout,
        embd_pdrop=dropout,
        attn_pdrop=dropout,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    # Not guessed from this class's name; Trainer needs it to count the shifted labels.
    model.loss_type = "ForCausalLM"
    return model


@made_once
def _save_tiny_model(folder: Path, dropout: float) -> Path:
    tiny_model(dropout).save_pretrained(folder)
    return folder


@made_once
def _save_tokenizer(folder: Path) -> Path:
    """No text is read here, so a few tokens are enough; they are saved with each model."""
    specials = {"pad_token": "<pad>", "unk_token": "<unk>"}
    tokens = list(specials.values())
    tokenizer = train_tokenizer(["a"], vocabulary=8, specials=tokens, template="$A", **specials)
    tokenizer.save_pretrained(folder)
    return folder


def rows(count: int, *, seed: int = 0, length: int | None = None) -> list[dict[str, list[int]]]:
    """Counting sequences with a random start and step; of uneven lengths by default."""
    draw = np.random.default_rng(seed)
    made = []
    for _ in range(count):
        size = length or int(draw.integers(4, 24))
        start, step = int(draw.integers(VOCABULARY)), int(draw.integers(1, 4))
        made.append({"input_ids": [(start + step * i) % VOCABULARY for i in range(size)]})
    return made


@dataclass
class Job:
    """One job of the train stage in a folder; each attempt is a request of its own."""

    home: Path
    training: dict[str, Any]
    dropout: float = 0.1
    train: list[dict[str, list[int]]] = field(default_factory=lambda: rows(37))
    validation: list[dict[str, list[int]]] | None = None
    test: list[dict[str, list[int]]] | None = None
    dtype: str = "float32"
    resources: dict[str, Any] = field(default_factory=lambda: {"gpus": 0})

    def __post_init__(self) -> None:
        self.workspace = self.home / "job"
        _save_tiny_model(self.home / "model", self.dropout)
        _save_tokenizer(self.home / "tokenizer")
        for name, split in self.splits.items():
            folder = self.home / "prepared" / name
            folder.mkdir(parents=True)
            for file in (EXAMPLES_FILE, FEATURES_FILE):
                with ArrowWriter(path=str(folder / file)) as writer:
                    for row in split:
                        writer.write(row)
                    writer.finalize()

    @property
    def splits(self) -> dict[str, list[dict[str, list[int]]]]:
        given = {"train": self.train, "validation": self.validation, "test": self.test}
        return {name: split for name, split in given.items() if split is not None}

    def spec(self) -> JobSpec:
        return JobSpec.model_validate(
            {
                "task": "causal-lm",
                "model": {"name_or_path": "/models/tiny", "dtype": self.dtype},
                "dataset": {
                    "source": "path",
                    **{name: f"/data/{name}.json" for name in self.splits},
                },
                "training": self.training,
                "resources": self.resources,
            }
        )

    def checkpoint(self, step: int | str, attempt: int = 1) -> Path:
        return self.workspace / "attempts" / str(attempt) / "checkpoints" / str(step)

    def request(self, attempt: int = 1, resume_from: Path | None = None) -> StageRequest:
        attempt_dir = self.workspace / "attempts" / str(attempt)
        attempt_dir.mkdir(parents=True, exist_ok=True)
        return StageRequest(
            job_id="job-1",
            stage=Stage.TRAIN,
            epoch=attempt,
            attempt=attempt,
            spec=self.spec(),
            workspace=self.workspace,
            attempt_dir=attempt_dir,
            cache_dir=self.home / "cache",
            prepared=PrepareResult(
                prepared_dir=self.home / "prepared",
                model_dir=self.home / "model",
                tokenizer_dir=self.home / "tokenizer",
                model_revision=None,
                dataset_revision=None,
                data_fingerprint="0" * 64,
                splits={},
            ),
            resume_from=resume_from,
        )


@contextmanager
def fails_with(
    code: FailureCode, match: str | None = None
) -> Iterator[pytest.ExceptionInfo[StageError]]:
    """A stage inside ends with a failure of this code, whose message has `match`."""
    with pytest.raises(StageError, match=match) as caught:
        yield caught
    assert caught.value.failure.code is code


class Killed(BaseException):
    """Stands for SIGKILL: no code of the stage's may run as if it knew."""


@dataclass
class Recorder:
    """In the place of the pipe to the supervisor."""

    kill_after: Callable[[StageEvent], bool] = lambda event: False
    stop_after: Callable[[StageEvent], bool] = lambda event: False
    """As SIGUSR1 that arrives while the event is sent."""
    events: list[StageEvent] = field(default_factory=list)
    soft_stop: SoftStop = field(default_factory=SoftStop)

    def send(self, event: StageEvent) -> None:
        self.events.append(event)
        if self.stop_after(event):
            self.soft_stop.request()
        if self.kill_after(event):
            raise Killed

    def of(self, kind: type[Any]) -> list[Any]:
        return [event for event in self.events if isinstance(event, kind)]

    def train_values(self, name: str) -> dict[int, float]:
        """Step → value, of the numbers logged while training."""
        metrics = [event for event in self.of(Metric) if event.kind == "train"]
        return {event.step: event.values[name] for event in metrics}

    def evaluations(self) -> dict[int, dict[str, float]]:
        metrics = [event for event in self.of(Metric) if event.kind == "eval"]
        return {event.step: event.values for event in metrics}

    def checkpoint_steps(self) -> list[int]:
        return [event.step for event in self.of(CheckpointSaved)]


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Golden numbers depend on how sums are split; and the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)


def reset_accelerate() -> None:
    """Accelerate keeps device and precision per process, and every job has its own."""
    AcceleratorState._reset_state(reset_partial_state=True)
    GradientState._reset_state()


def run(request: StageRequest, recorder: Recorder | None = None) -> tuple[TrainResult, Recorder]:
    """The real stage, in this process."""
    reset_accelerate()
    recorder = recorder or Recorder()
    result: Any = train.main(request, recorder)  # type: ignore[arg-type]
    return result, recorder


def scores(metrics: Mapping[str, float], split: str = "eval") -> dict[str, float]:
    """The metrics of a result, without the split's prefix, and without how fast they were made."""
    speed = ("_runtime", "_samples", "_per_second")
    named = {k: v for k, v in metrics.items() if k.startswith(f"{split}_")}
    return {k.removeprefix(f"{split}_"): v for k, v in named.items() if not k.endswith(speed)}


def at_checkpoint(step: int) -> Callable[[StageEvent], bool]:
    return lambda event: isinstance(event, CheckpointSaved) and event.step == step


def use_tiny_task() -> None:
    registry.REGISTRY["causal-lm"] = TinyTask()


ROLLBACK: dict[str, Any] = {
    "max_steps": 8,
    "save_steps": 3,
    "learning_rate": 1e38,
    "max_grad_norm": 0.0,
    "on_non_finite": "rollback",
    "rollback_learning_rate_factor": 1e-40,
}


def rollbacks(recorder: Recorder) -> list[dict[str, Any]]:
    return [event.data for event in recorder.of(Notice) if "rollback" in event.message]
