"""Search for a learning rate and a batch size, look at the trials, and download the best model.

python examples/python_client/search.py [FOLDER [MODEL]]
"""

import sys
from pathlib import Path
from typing import Any, Final

from finetune_client import Client, Table, types

DATA: Final = Path(__file__).resolve().parents[1] / "classification"
DEFAULTS: Final = ("topics-search", "sentence-transformers/all-MiniLM-L6-v2")
DAY: Final = 86400
RATE: Final = "training.learning_rate"
BATCH: Final = "training.per_device_train_batch_size"
COLUMNS: Final = ("trial", "state", "accuracy", RATE, BATCH)


def main(folder: Path, model: str) -> None:
    with Client() as client:
        search = client.searches.create(
            name="topics",
            job=template(client, model),
            space={RATE: {"low": 5e-5, "high": 2e-3, "log": True}, BATCH: [8, 16]},
            objective={"metric": "accuracy"},
            sampler={"name": "tpe", "seed": 1, "n_startup_trials": 3},
            pruner={"name": "asha", "rungs": [10]},
            max_trials=6,
        )
        ended = client.searches.wait(search.id)
        if ended.failure:
            raise SystemExit(f"{ended.failure.message}\n{ended.failure.action}")
        print(Table(map(row, client.searches.trials(search.id)), COLUMNS))
        (best,) = client.searches.best(search.id)
        print(f"trial {best.trial} is the best")
        assert best.job_id is not None  # only a trial that failed may have no job
        for path in client.jobs.download(best.job_id, folder):
            print(path)
        (folder / "history.html").write_text(client.searches.plot_html(search.id, "history"))


def row(trial: types.Trial) -> dict[str, Any]:
    accuracy = trial.scores[0] if trial.scores else None
    return {"trial": trial.trial, "state": trial.state, "accuracy": accuracy} | trial.values


def template(client: Client, model: str) -> dict[str, Any]:
    """The job that each trial is made from. The files are removed by themselves after a day."""
    train = client.files.create(DATA / "topics-train.jsonl", expires_after=DAY)
    validation = client.files.create(DATA / "topics-short.jsonl", expires_after=DAY)
    return {
        "task": {"type": "text-classification", "max_seq_length": 64},
        "model": {"name_or_path": model},
        "dataset": {"source": "upload", "train": train.id, "validation": validation.id},
        "training": {"max_steps": 30, "eval_strategy": "steps", "eval_steps": 10},
        "metadata": {"example": "python_client"},
    }


if __name__ == "__main__":
    folder, model = [*sys.argv[1:3], *DEFAULTS[len(sys.argv) - 1 :]]
    main(Path(folder), model)
