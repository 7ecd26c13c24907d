"""Jobs of preferences on a tiny Llama."""

from pathlib import Path
from typing import Any

from tests.support.models import save_tiny_llama
from tests.tasks.stages import StagedJob, write_rows


def pair(number: int) -> dict[str, Any]:
    return {
        "prompt": f"who wrote report {number}?",
        "chosen": f"the board wrote it {number}",
        "rejected": "nobody knows " * (1 + number % 3),
    }


def body(folder: Path, task: dict[str, Any], **training: Any) -> dict[str, Any]:
    """A job of 12 pairs to train on and 5 to validate; float32, so that numbers are exact."""
    rows = [pair(number) for number in range(12)]
    return {
        "task": task,
        "model": {"name_or_path": str(save_tiny_llama(folder / "model", positions=256))},
        "dataset": {
            "source": "path",
            "train": write_rows(folder / "train.jsonl", rows),
            "validation": write_rows(folder / "validation.jsonl", rows[:5]),
        },
        "training": {
            "max_steps": 4,
            "per_device_train_batch_size": 4,
            "logging_steps": 1,
            "learning_rate": 1e-3,
            "bf16": False,
            "use_cpu": True,
            **training,
        },
    }


def job(folder: Path, task: dict[str, Any] | None = None, **training: Any) -> StagedJob:
    return StagedJob(folder, body(folder, {"type": "preference", **(task or {})}, **training))
