"""Train a small model with `finetune_client`, look at what was measured, ask it, and download it.

finetune up                                        # in another terminal
pip install './client[notebook]'
python examples/python_client/train.py [FOLDER [MODEL]]
"""

import sys
from pathlib import Path
from typing import Final

from finetune_client import Client, JobFailedError, Table, types

DATA: Final = Path(__file__).resolve().parents[1] / "classification"
DEFAULTS: Final = ("topics-model", "sentence-transformers/all-MiniLM-L6-v2")
DAY: Final = 86400
QUESTIONS: Final = ("Where is the Warsaw Uprising Museum?", "Who was the first Yuan emperor?")


def main(folder: Path, model: str) -> None:
    with Client() as client:
        job = client.jobs.create(spec(client, model))
        for warning in job.warnings:
            print(warning.path, warning.message)
        job.wait(progress=True)
        try:
            job.raise_for_failure()
        except JobFailedError as failure:
            raise SystemExit(f"{failure.code}: {failure.message}\n{failure.action}") from failure
        print(client.jobs.table(5))
        print(Table(job.metrics_table(), ("step", "loss", "eval_loss", "eval_accuracy")))
        print(Table(job.checkpoints(), ("step", "metric", "best", "bytes")))
        answers = job.predict([{"text": question} for question in QUESTIONS]).answers or []
        for question, answer in zip(QUESTIONS, answers, strict=True):
            print(question, answer["prediction"])
        for path in job.download(folder):
            print(path)


def spec(client: Client, model: str) -> types.JobSpec:
    """The files are removed by themselves after a day."""
    train = client.files.create(DATA / "topics-train.jsonl", expires_after=DAY)
    validation = client.files.create(DATA / "topics-short.jsonl", expires_after=DAY)
    return types.JobSpec(
        name="topics",
        task=types.TextClassificationSpec(type="text-classification", max_seq_length=64),
        model=types.ModelSpec(name_or_path=model),
        dataset=types.UploadDataset(source="upload", train=train.id, validation=validation.id),
        training=types.TrainingSpec(
            num_train_epochs=2,
            learning_rate=2e-4,
            logging_steps=5,
            eval_strategy="epoch",
            save_strategy="epoch",
            load_best_model_at_end=True,
            metric_for_best_model="eval_accuracy",
        ),
        metadata={"example": "python_client"},
    )


if __name__ == "__main__":
    folder, model = [*sys.argv[1:3], *DEFAULTS[len(sys.argv) - 1 :]]
    main(Path(folder), model)
