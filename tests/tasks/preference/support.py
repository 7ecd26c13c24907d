"""Jobs of preferences on a tiny Llama."""

from pathlib import Path
from typing import Any

from tests.support.models import save_tiny_llama
from tests.tasks.stages import StagedJob, job_of


def pair(number: int) -> dict[str, Any]:
    return {
        "prompt": f"who wrote report {number}?",
        "chosen": f"the board wrote it {number}",
        "rejected": "nobody knows " * (1 + number % 3),
    }


def job(folder: Path, task: dict[str, Any] | None = None, **training: Any) -> StagedJob:
    """Of 12 pairs to train on and 5 to validate; float32, so that numbers are exact."""
    rows = [pair(number) for number in range(12)]
    options: dict[str, Any] = {"max_steps": 4, "per_device_train_batch_size": 4, "logging_steps": 1}
    options |= {"learning_rate": 1e-3, "bf16": False, **training}
    model = save_tiny_llama(folder / "model", positions=256)
    dataset = {"train": rows, "validation": rows[:5]}
    return job_of(folder, {"type": "preference", **(task or {})}, model, dataset, options)
