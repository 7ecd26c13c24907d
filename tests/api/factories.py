"""Specs and their faults, and rows for the reads of the API, as the worker side writes them."""

from datetime import UTC, datetime, timedelta
from typing import Any

from pydantic import BaseModel
from pydantic.fields import FieldInfo

from service.api.faults.collect import collect
from service.api.faults.walk import models_in
from service.contract.spec.spec import SPEC_VERSION, JobSpec
from service.contract.states import JobState, Stage
from service.store.database import Database
from service.store.jobs.state import new_job_id
from service.store.tables.jobs import JobLabelRow, JobRow

Line = tuple[str, str, str]
START = datetime(2026, 1, 1, tzinfo=UTC)
SPEC: dict[str, Any] = {
    "task": "question-answering",
    "model": {"name_or_path": "org/model"},
    "dataset": {"source": "hub", "name": "org/data"},
}


def spec(**changes: Any) -> dict[str, Any]:
    return {**SPEC, **changes}


def add_job(database: Database, **columns: Any) -> str:
    """A queued job with the given columns instead of the usual ones; its id."""
    body = columns.pop("spec", SPEC)
    parsed = JobSpec.model_validate(body)
    at = columns.pop("created_at", START)
    row = JobRow(
        **{
            "id": new_job_id(),
            "name": parsed.name,
            "task": parsed.task.type,
            "spec": parsed.model_dump(mode="json"),
            "spec_version": SPEC_VERSION,
            "metadata_": dict(parsed.metadata),
            "created_at": at,
            "updated_at": at,
            "state": JobState.QUEUED,
            "stage": Stage.PREPARE,
            "last_metrics": {},
            "results": {},
            "queue": "cpu",
            "priority": parsed.priority,
            "queued_at": at,
            "not_before": at,
            "next_publish_at": at + timedelta(days=3650),
            "max_retries": parsed.max_retries,
            "ended_at": None,
            **columns,
        }
    )
    with database.write() as session:
        session.add(row)
        session.flush()
        session.add_all(
            JobLabelRow(key=key, value=value, job_id=row.id) for key, value in row.metadata_.items()
        )
    return row.id


def fields_at(place: str) -> list[FieldInfo]:
    """The fields of the spec with this path, in the sections of each kind."""
    models: list[type[BaseModel]] = [JobSpec]
    for name in place.split("."):
        fields = [model.model_fields[name] for model in models if name in model.model_fields]
        models = [inner for field in fields for inner in models_in(field.annotation)]
    return fields


def lines(body: Any) -> list[Line]:
    """The faults of a spec: path, code and message."""
    return [(fault.path, fault.code, fault.message) for fault in collect(body).faults]
