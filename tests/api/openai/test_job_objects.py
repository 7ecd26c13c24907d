"""Rows of jobs as OpenAI's objects: what is derived from each column, without a server."""

from datetime import timedelta
from typing import Any

import pytest

from service.api.openai.job_objects import fine_tuning_job
from service.api.openai.model_titles import ModelTitles
from service.store.database import Database
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobRow
from tests.api.factories import START, add_job
from tests.api.openai.chat_jobs import CHAT, TRAINED

AT = int(START.timestamp())
DPO = {**CHAT, "task": {"type": "preference", "beta": 0.3}}
FILES = {"source": "upload", "train": ["file-1", "file-2"], "validation": ["file-3"]}
UNREADABLE = {"code": "unreadable_row", "message": "Line 3 of file-1."}


def shown(database: Database, **columns: Any) -> dict[str, Any]:
    job_id = add_job(database, **{"spec": CHAT, **columns})
    with database.read() as session:
        row = session.get_one(JobRow, job_id)
        job = fine_tuning_job(row, ModelTitles(session, EVERYTHING, [row]))
    return job.model_dump()


def of_dataset(**dataset: Any) -> dict[str, Any]:
    return {"spec": {**CHAT, "dataset": dataset}}


def of_training(**training: Any) -> dict[str, Any]:
    return {"spec": {**CHAT, "training": training}}


def tokens(count: Any) -> dict[str, Any]:
    return {"results": {"train": {"metrics": {"num_input_tokens_seen": count}}}}


def failed(code: str, message: str, **more: Any) -> dict[str, Any]:
    failure = {"code": code, "message": message, **more.pop("failure", {})}
    return {"state": "failed", "failure": failure, **more}


def error(code: str, message: str, param: str | None) -> dict[str, Any]:
    return {"error": {"code": code, "message": message, "param": param}}


def numbers(epochs: int | None, batch: int, multiplier: float) -> dict[str, Any]:
    return {
        "hyperparameters": {
            "n_epochs": epochs,
            "batch_size": batch,
            "learning_rate_multiplier": multiplier,
        }
    }


# Columns of a job, and fields of its object.
OBJECTS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({"created_at": START + timedelta(seconds=2.9)}, {"created_at": AT + 2, "finished_at": None}),
    ({"ended_at": START + timedelta(seconds=1.9)}, {"finished_at": AT + 1}),
    # ---- when it may end ----
    (
        {"state": "running", "stage": "train", "progress": {"eta_seconds": 90.5}},
        {"status": "running", "estimated_finish": AT + 90},
    ),
    (
        {"state": "running", "progress": {"eta_seconds": 1e12}},
        {"estimated_finish": AT + 10 * 366 * 86400},
    ),
    ({"state": "running", "progress": {"eta_seconds": None}}, {"estimated_finish": None}),
    ({"state": "paused", "progress": {"eta_seconds": 90}}, {"estimated_finish": None}),
    # ---- tokens ----
    (tokens(99), {"trained_tokens": 99}),
    (tokens(99.0), {"trained_tokens": 99}),
    (tokens("nan"), {"trained_tokens": None}),
    ({"results": {"train": {}}}, {"trained_tokens": None}),
    # ---- its model ----
    ({"state": "failed", "results": TRAINED}, {"fine_tuned_model": None}),
    ({"state": "succeeded", "results": {"train": {}}}, {"fine_tuned_model": None}),
    (
        {"state": "succeeded", "results": TRAINED, "workspace_pruned_at": START},
        {"fine_tuned_model": None},
    ),
    # ---- files ----
    (of_dataset(**FILES), {"training_file": "file-1", "validation_file": "file-3"}),
    (
        of_dataset(source="hub", name="org/data", validation={"a": "test", "b": "more[:9]"}),
        {"training_file": "org/data", "validation_file": "org/data:test"},
    ),
    (
        of_dataset(source="hub", name="org/data"),
        {"training_file": "org/data", "validation_file": None},
    ),
    # ---- failures ----
    (
        failed("unreadable_row", "Line 3.", failure={"action": "Mend it."}),
        error("unreadable_row", "Line 3. Mend it.", "training_file"),
    ),
    (
        failed("unreadable_row", "Line 3 of file-3", **of_dataset(**FILES)),
        error("unreadable_row", "Line 3 of file-3.", "validation_file"),
    ),
    (
        failed("empty_dataset", "The validation split is empty.", **of_dataset(**FILES)),
        error("empty_dataset", "The validation split is empty.", "validation_file"),
    ),
    (
        failed("empty_dataset", "The validation split is empty."),
        error("empty_dataset", "The validation split is empty.", "training_file"),
    ),
    (
        failed("model_not_found", "file-3", **of_dataset(**FILES)),
        error("model_not_found", "file-3.", "model"),
    ),
    (failed("timeout", "Too long."), error("timeout", "Too long.", None)),
    # It is tried again.
    ({"state": "queued", "failure": UNREADABLE}, {"error": None}),
    # ---- experiments ----
    ({"spec": {**CHAT, "tracking": {}}}, {"integrations": []}),
    (
        {"spec": {**CHAT, "tracking": {"run_name": "r"}}},
        {"integrations": [{"type": "mlflow", "mlflow": {"project": "finetune", "name": "r"}}]},
    ),
    (
        {"spec": {**CHAT, "tracking": {"experiment_name": "e"}}},
        {"integrations": [{"type": "mlflow", "mlflow": {"project": "e", "name": None}}]},
    ),
    # ---- how it is trained ----
    (
        of_training(
            num_train_epochs=2, per_device_train_batch_size=4, gradient_accumulation_steps=8
        ),
        numbers(2, 32, 2.5),
    ),
    (of_training(num_train_epochs=1.5, learning_rate=2e-5), numbers(None, 8, 1.0)),
    (of_training(max_steps=1, learning_rate=7e-6), numbers(None, 8, 0.35)),
    (
        {"spec": {**CHAT, "peft": {"method": "lora"}, "training": {"learning_rate": 1e-4}}},
        numbers(3, 8, 0.5),
    ),
    (
        {"spec": {**DPO, "training": {"learning_rate": 3e-6}}},
        {
            "method": {
                "type": "dpo",
                "supervised": None,
                "dpo": {"hyperparameters": {**numbers(3, 8, 3.0)["hyperparameters"], "beta": 0.3}},
                "reinforcement": None,
            }
        },
    ),
]


@pytest.mark.parametrize(("columns", "fields"), OBJECTS)
def test_fields(database: Database, columns: dict[str, Any], fields: dict[str, Any]) -> None:
    found = shown(database, **columns)
    assert {name: found[name] for name in fields} == fields
