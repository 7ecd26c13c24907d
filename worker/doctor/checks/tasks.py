"""The table of tasks: each is trained, resumed, evaluated, asked and adapted on tiny data, and its
numbers are compared with the expected ones.

`finetune doctor --thorough` runs it on a user's device, `tests/doctor/test_tasks.py` on ours.
"""

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final

from worker.doctor import tiny
from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import FinishedStage, Jobs, StageFailedError

ACTIONS: Final = ("train", "resume", "evaluate", "predict", "adapter")
TOLERANCES: Final = {"cpu": 1e-4, "cuda": 2e-2}
"""Relative differences of losses, all in float32: a GPU adds numbers in another order."""
_REMEDY: Final = (
    "Run `make test-all ARGS=tests/doctor` on this machine with the versions of constraints.txt; "
    "if it passes, send this report."
)


@dataclass(frozen=True)
class ExpectedNumbers:
    """The numbers of a CPU in float32, with the versions of constraints.txt."""

    losses: tuple[float, ...]
    """The mean of every two steps."""
    evaluation: dict[str, float]
    """The metrics after the training, without `eval_`; a GPU must have the same loss."""
    adapter: tuple[float, ...]
    """As `losses`, of a LoRA adapter."""
    writes: str | None = None
    """The column that `mode: predict` adds, if the training's predictions are of another kind."""
    parameters: Mapping[str, Any] = field(default_factory=dict)


TABLE: Final[dict[str, ExpectedNumbers]] = {
    "question-answering": ExpectedNumbers(
        losses=(2.64084, 2.04143, 1.60842, 1.39627),
        evaluation={"loss": 1.17847, "exact_match": 100.0, "f1": 100.0},
        adapter=(2.74061, 2.55554, 2.42514, 2.36763),
    ),
    "causal-lm": ExpectedNumbers(
        losses=(5.90694, 5.49329, 5.24341, 5.08167),
        evaluation={"loss": 5.00594, "perplexity": 149.298, "accuracy": 0.24},
        adapter=(5.95255, 5.87945, 5.83903, 5.81805),
        writes="prediction",
    ),
    "masked-lm": ExpectedNumbers(
        losses=(5.85093, 5.60392, 5.39644, 5.31707),
        evaluation={"loss": 5.1111, "perplexity": 165.853, "accuracy": 0.291667},
        adapter=(5.88455, 5.80834, 5.7963, 5.78712),
        writes="masks",
    ),
    "text-classification": ExpectedNumbers(
        losses=(0.69444, 0.692352, 0.690437, 0.686056),
        evaluation={"loss": 0.688841, "accuracy": 0.75, "matthews_correlation": 0.52915},
        adapter=(0.693366, 0.693063, 0.692968, 0.692796),
    ),
    "token-classification": ExpectedNumbers(
        losses=(0.674067, 0.467081, 0.382718, 0.292499),
        evaluation={"loss": 0.268888, "accuracy": 0.955882, "f1": 0.909091, "ARTICLE_f1": 0.909091},
        adapter=(0.717929, 0.631648, 0.602315, 0.55343),
    ),
    "summarization": ExpectedNumbers(
        losses=(5.71416, 4.56159, 4.1673, 3.99719),
        evaluation={"loss": 3.96339, "rouge1": 20.2381, "rougeLsum": 20.2381, "gen_len": 5.0},
        adapter=(6.10494, 5.30091, 4.84776, 4.74602),
    ),
    "translation": ExpectedNumbers(
        losses=(5.71416, 4.56159, 4.1673, 3.99719),
        evaluation={"loss": 3.96339, "bleu": 3.06573, "gen_len": 5.0},
        adapter=(6.10494, 5.30091, 4.84776, 4.74602),
    ),
    "chat": ExpectedNumbers(
        losses=(5.90615, 5.51389, 5.29282, 5.12964),
        evaluation={"loss": 5.05066, "perplexity": 156.125, "accuracy": 0.465753},
        adapter=(5.96748, 5.88528, 5.87128, 5.84549),
        writes="prediction",
    ),
    "preference": ExpectedNumbers(
        losses=(0.0762565, 0.0564764, 0.0454425, 0.0386217),
        evaluation={"loss": 0.045599, "rewards/margins": 3.15159, "logps/chosen": -34.5984},
        adapter=(0.0798676, 0.0806433, 0.0853857, 0.0841664),
        writes="prediction",
        parameters={"reference": "none"},  # an evaluation has no model from before
    ),
    "reward": ExpectedNumbers(
        losses=(0.663221, 0.642062, 0.351653, 0.186219),
        evaluation={"loss": 0.151965, "accuracy": 1.0, "margin": 1.82383, "min_reward": -0.959477},
        adapter=(0.686415, 0.662421, 0.541171, 0.467498),
    ),
}
_TRAINING: Final[dict[str, Any]] = {
    "max_steps": 8,
    "per_device_train_batch_size": 8,
    "learning_rate": 5e-3,
    "logging_steps": 2,
}
_RESUMED: Final[dict[str, Any]] = {
    **_TRAINING,
    "max_steps": 6,
    "save_strategy": "steps",
    "save_steps": 4,  # within an epoch, where an epoch has three steps
    "neftune_noise_alpha": 5.0,  # so that random states count
    "full_determinism": True,  # without it two runs on a GPU give different numbers
}
_ADAPTER: Final = {"method": "lora", "r": 4, "lora_alpha": 16, "target_modules": "all-linear"}


class Trial:
    """A row of the table. Each action returns what is wrong; nothing if it is as expected."""

    def __init__(self, task: str, jobs: Jobs) -> None:
        self._task, self._jobs, self._expected = task, jobs, TABLE[task]
        self._tolerance = TOLERANCES[jobs.context.device]

    def run(self, action: str) -> str:
        try:
            fault: str = getattr(self, f"_{action}")()
        except StageFailedError as error:
            return str(error)
        return fault

    @cached_property
    def _trained(self) -> FinishedStage:
        return self._jobs.train(self._body("train", "validation", "test"), **_TRAINING)

    def _train(self) -> str:
        found = {"losses": self._trained.losses, **self._trained.evaluation}
        evaluation = {f"eval_{name}": value for name, value in self._expected.evaluation.items()}
        if self._jobs.context.device == "cuda":
            evaluation = {"eval_loss": evaluation["eval_loss"]}
        return self._difference(found, {"losses": [*self._expected.losses], **evaluation})

    def _resume(self) -> str:
        body = self._body("train")
        whole = self._jobs.train(body, **_RESUMED)
        checkpoint = whole.checkpoint(_RESUMED["save_steps"])
        resumed = self._jobs.train(body, resume_from=checkpoint, **_RESUMED)
        rest = whole.losses[_RESUMED["save_steps"] // _RESUMED["logging_steps"] :]
        same = resumed.trained.weights_sha256 == whole.trained.weights_sha256
        if same and resumed.losses == rest:
            return ""
        return f"other weights or losses: {resumed.losses}, uninterrupted {whole.losses}"

    def _evaluate(self) -> str:
        found = self._jobs.train(self._asked("evaluate", "validation"))
        return self._difference(found.evaluation, self._trained.evaluation) or self._difference(
            _predictions(found), _predictions(self._trained)
        )

    def _predict(self) -> str:
        rows = _predictions(self._jobs.train(self._asked("predict", "test")), "test")
        column = self._expected.writes
        if column is None:
            return self._difference(rows, _predictions(self._trained, "test"))
        is_written = len(rows) == tiny.PREDICTED and all(row[column] for row in rows)
        return "" if is_written else f"no `{column}` in one of {rows}"

    def _adapter(self) -> str:
        ended = self._jobs.train(self._body("train") | {"peft": _ADAPTER}, **_TRAINING)
        files = {file.name for file in ended.model.glob("*.safetensors")}
        if files != {"adapter_model.safetensors"}:
            return f"the finished model has not only an adapter, but {sorted(files)}"
        return self._difference(ended.losses, [*self._expected.adapter])

    def _body(self, *splits: str) -> dict[str, Any]:
        return self._jobs.body(self._task, splits, **self._expected.parameters)

    def _asked(self, mode: str, split: str) -> dict[str, Any]:
        model = {"name_or_path": str(self._trained.model)}
        return self._body(split) | {"mode": mode, "model": model}

    def _difference(self, found: Any, expected: Any) -> str:
        is_same = _near(found, expected, self._tolerance)
        return "" if is_same else f"found {found}; expected {expected}"


def task(context: Context, jobs: Jobs) -> Finding:
    """The row of this check's name."""
    trial = Trial(context.name, jobs)
    faults = {action: trial.run(action) for action in ACTIONS}
    wrong = {action: fault for action, fault in faults.items() if fault}
    if wrong:
        reason = "\n".join(f"{action}: {fault}" for action, fault in wrong.items())
        return failed(f"not as expected: {', '.join(wrong)}", reason=reason, remedy=_REMEDY)
    return ok(f"as expected: {', '.join(ACTIONS)}")


def _near(found: Any, expected: Any, tolerance: float) -> bool:
    """Whether JSON values are equal, numbers nearly. `found` may have more keys."""
    if isinstance(expected, dict):
        return expected.keys() <= found.keys() and all(
            _near(found[name], value, tolerance) for name, value in expected.items()
        )
    if isinstance(expected, list):
        return len(found) == len(expected) and all(
            _near(one, other, tolerance) for one, other in zip(found, expected, strict=True)
        )
    if isinstance(expected, float):
        return math.isclose(found, expected, rel_tol=tolerance, abs_tol=tolerance / 100)
    return bool(found == expected)


def _predictions(ended: FinishedStage, split: str = "") -> Any:
    folder = ended.workspace / "attempts" / "1" / "predictions" / split
    return json.loads((folder / "predictions.json").read_bytes())
