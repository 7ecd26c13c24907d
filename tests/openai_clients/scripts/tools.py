"""The calls of tools that were written for OpenAI's API, and what they read of the answers.

Each function has the calls of one tool, in its order: DSPy 3.4 (`dspy.clients.openai`), LlamaIndex
(`llama-index-finetuning` 0.4), instructor 1.17 (its command line) and Weights & Biases 0.31
(`WandbLogger.sync`).
"""

import base64
import csv
import io
from datetime import datetime
from typing import Any

import openai

from tests.openai_clients.scripts.client import refused

ENDED = ("succeeded", "failed", "cancelled")


def check_dspy(job: str) -> None:
    """Through the module's own client, which the environment configures."""
    statuses = ("validating_files", "queued", "running", *ENDED)
    assert openai.fine_tuning.jobs.retrieve(job).status in statuses
    estimate = openai.fine_tuning.jobs.retrieve(job).estimated_finish
    assert estimate is None or datetime.fromtimestamp(estimate)
    events = openai.fine_tuning.jobs.list_events(fine_tuning_job_id=job, limit=1)
    assert events.data[0].id
    assert datetime.fromtimestamp(events.data[0].created_at)
    assert events.data[0].message
    assert openai.fine_tuning.jobs.retrieve(job).fine_tuned_model
    refused(openai.NotFoundError, lambda: openai.fine_tuning.jobs.retrieve("job-none"))
    refused(openai.NotFoundError, lambda: openai.files.retrieve("file-none"))


def check_llama_index(client: openai.OpenAI, job: str) -> None:
    """Tries a create again for ever while it is answered with 400: a file is ready at once."""
    file = client.fine_tuning.jobs.retrieve(job).training_file
    assert client.files.retrieve(file).status == "processed"
    found = client.fine_tuning.jobs.retrieve(job)
    assert (found.fine_tuned_model is not None) == (found.status == "succeeded")


def check_instructor(client: openai.OpenAI) -> None:
    """A table of the newest jobs, and one of the files."""
    for job in client.fine_tuning.jobs.list(limit=5).data:
        assert datetime.fromtimestamp(job.created_at)
        assert str(job.hyperparameters.n_epochs)
        assert (job.finished_at is not None) == (job.status in ENDED)
        assert job.model
    files = client.files.list().data
    assert sorted(files, key=lambda file: file.created_at, reverse=True)
    assert all(file.status == "processed" for file in files)


def check_wandb(client: openai.OpenAI, job: str) -> None:
    """The newest jobs or one of them, its configuration, and the text of its files."""
    assert job in [each.id for each in client.fine_tuning.jobs.list().data]
    found = client.fine_tuning.jobs.retrieve(fine_tuning_job_id=job)
    configuration: dict[str, Any] = dict(found)
    assert datetime.fromtimestamp(configuration["finished_at"])
    assert dict(configuration["hyperparameters"]).keys() >= {
        "n_epochs",
        "batch_size",
        "learning_rate_multiplier",
    }
    results = text_of(client, found.result_files[0])
    numbers = list(csv.DictReader(io.StringIO(results)))
    assert numbers
    steps = [int(row.pop("step")) for row in numbers]
    assert steps == sorted(set(steps))
    assert all(float(value) >= 0 for row in numbers for value in row.values() if value)
    assert any(row["train_loss"] for row in numbers)
    for file in (found.training_file, found.validation_file):
        if file is not None:
            assert client.files.content(file_id=file).text.startswith('{"messages"')


def text_of(client: openai.OpenAI, file: str) -> str:
    """OpenAI's newer results files are base64, and the tool reads others as they are."""
    try:
        return base64.b64decode(client.files.content(file_id=file).read()).decode()
    except ValueError:
        return client.files.content(file_id=file).text
