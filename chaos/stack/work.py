"""The jobs that are attacked: real training of a GPT-2 of 40,000 weights, in a second or two."""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.models import save_tiny_gpt2
from tests.tasks.stages import write_rows

_TEXT = "the report of the water board was read by all who were there in the morning"


@dataclass(frozen=True)
class Undisturbed:
    """The result that a job must have, however it was attacked."""

    weights_sha256: str
    losses: Mapping[int, float]
    """Step → training loss."""


class Material:
    """A model and a data set in a folder that the service may read."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._model = save_tiny_gpt2(folder / "tiny-gpt2")
        words = _TEXT.split()
        rows = [{"text": " ".join(words[n % 7 :] + words[: n % 5])} for n in range(200)]
        self._train = write_rows(folder / "train.jsonl", rows)
        self._validation = write_rows(folder / "validation.jsonl", rows[:20])

    def body(self, seed: int = 0, steps: int = 20, **training: Any) -> dict[str, Any]:
        """A job spec: with dropout and shuffling, so that a resume must restore them."""
        return {
            "task": {"type": "causal-lm", "block_size": 32},
            "model": {"name_or_path": str(self._model)},
            "dataset": {
                "source": "path",
                "train": [self._train],
                "validation": [self._validation],
            },
            "training": {
                "seed": seed,
                "max_steps": steps,
                "per_device_train_batch_size": 4,
                "learning_rate": 1e-3,
                "logging_steps": 1,
                "save_steps": 4,
                "save_total_limit": 2,
                "use_cpu": True,
                **training,
            },
            # An attack's kills are not the job's fault, however many hit the same one.
            "max_retries": 100,
        }


def stub_body(*, steps: int = 3, seconds: float = 0, **metadata: str) -> dict[str, Any]:
    """A job without torch (tests/support/stages/stage.py), for a stack with `stubs`.

    Its training makes `steps` steps of `seconds` each, with almost no processor time. Further keys
    are stages and behaviours of the stub, such as `train="fail:disk_full"`.
    """
    options = metadata | {"steps": str(steps), "seconds": str(seconds)}
    return {
        "task": {"type": "causal-lm"},
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "squad"},
        "metadata": {f"stub.{key}": value for key, value in options.items()},
        "max_retries": 100,
    }


def stub_undisturbed(body: Mapping[str, Any]) -> Undisturbed | None:
    """The result of a job of `stub_body`; None for other jobs."""
    steps = body.get("metadata", {}).get("stub.steps")
    if steps is None:
        return None
    return Undisturbed("0" * 64, {step: 1 / step for step in range(1, int(steps) + 1)})
