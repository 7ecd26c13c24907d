"""What only this server knows to be wrong: missing files and jobs, folders not allowed."""

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from pydantic import BaseModel

from service.api.faults.collect import Findings
from service.api.faults.walk import Path as FaultPath
from service.api.faults.walk import dotted
from service.api.redaction import cut, shown
from service.api.schemas.problems import Fault
from service.contract import resume_from, splits
from service.contract.paths import PathNotAllowedError, resolve_under_roots
from service.contract.spec import JobSpec, PathDataset, UploadDataset
from service.errors import SourceJobError
from service.settings import Settings
from service.store import files, lineage
from service.store.database import Database

_MODEL_FIELDS = ("name_or_path", "tokenizer_name", "config_name")
_PATH_STARTS = ("/", ".", "~")


def check(findings: Findings, settings: Settings, database: Database) -> None:
    """Add these faults to the findings; places that were mended are left alone."""
    if findings.spec is None:
        return
    faults = [
        *_unknown_files(findings.spec, database),
        *_data_paths(findings.spec, settings.data_roots),
        *_model_paths(findings.spec, settings.model_roots),
        *_source_job(findings.spec, database),
        *_resumed_job(findings.spec, database),
    ]
    findings.faults += [fault for path, fault in faults if not findings.is_mended(path)]
    findings.faults.sort(key=lambda fault: fault.path)


def _unknown_files(spec: JobSpec, database: Database) -> Iterator[tuple[FaultPath, Fault]]:
    if not isinstance(spec.dataset, UploadDataset):
        return
    wanted = list(_items(spec.dataset))
    with database.read() as session:
        known = files.existing(session, [file_id for _, file_id in wanted])
    for path, file_id in wanted:
        if file_id not in known:
            message = "there is no such file: upload it with POST /v1/files"
            yield path, _fault(path, "unknown_file", message, file_id)


def _data_paths(spec: JobSpec, roots: Sequence[Path]) -> Iterator[tuple[FaultPath, Fault]]:
    if isinstance(spec.dataset, PathDataset):
        for path, value in _items(spec.dataset):
            yield from _allowed(path, value, roots, "FINETUNE_DATA_ROOTS")


def _items(dataset: UploadDataset | PathDataset) -> Iterator[tuple[FaultPath, str]]:
    for split, values in splits.given(dataset).items():
        for index, value in enumerate(values):
            yield ("dataset", *splits.place(split), index), value


def _model_paths(spec: JobSpec, roots: Sequence[Path]) -> Iterator[tuple[FaultPath, Fault]]:
    for name in _MODEL_FIELDS:
        value = getattr(spec.model, name)
        if value is not None and value.startswith(_PATH_STARTS):
            yield from _allowed(("model", name), value, roots, "FINETUNE_MODEL_ROOTS")


def _source_job(spec: JobSpec, database: Database) -> Iterator[tuple[FaultPath, Fault]]:
    job_id, checkpoint = spec.model.job, spec.model.checkpoint
    if job_id is None:
        return
    try:
        with database.read() as session:
            lineage.model_of(session, job_id, checkpoint)
    except SourceJobError as error:
        yield _source_fault(("model",), error, job_id, checkpoint)


def _resumed_job(spec: JobSpec, database: Database) -> Iterator[tuple[FaultPath, Fault]]:
    resumed = spec.training.resume_from
    if resumed is None:
        return
    with database.read() as session:
        try:
            lineage.checkpoint_of(session, resumed.job, resumed.checkpoint)
        except SourceJobError as error:
            place = ("training", "resume_from")
            yield _source_fault(place, error, resumed.job, resumed.checkpoint)
        source = lineage.spec_of(session, resumed.job)
    if source is None or not source.trains:
        return
    for path, ours, theirs in resume_from.differences(spec, source):
        message = (
            f"`training.resume_from` continues job {resumed.job}, where this is {_said(theirs)}: "
            "give the same, or begin with the model of its checkpoint alone (`model.job`)"
        )
        yield path, _fault(path, "resume_mismatch", message, _said(ours))


def _said(value: Any) -> str:
    """A value as a spec has it."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    return cut(value if isinstance(value, str) else json.dumps(value))


def _source_fault(
    place: FaultPath, error: SourceJobError, job_id: str, checkpoint: str | int | None
) -> tuple[FaultPath, Fault]:
    reason = str(error.extra["reason"])
    of_checkpoint = reason in ("unknown_checkpoint", "checkpoint_gone")
    path = (*place, "checkpoint" if of_checkpoint else "job")
    given = str(checkpoint) if of_checkpoint else job_id
    return path, _fault(path, reason, error.detail, given)


def _allowed(
    path: FaultPath, value: str, roots: Sequence[Path], setting: str
) -> Iterator[tuple[FaultPath, Fault]]:
    try:
        resolve_under_roots(value, roots, setting)
    except PathNotAllowedError as error:
        yield path, _fault(path, "path_not_allowed", str(error), value)


def _fault(path: FaultPath, code: str, message: str, given: str) -> Fault:
    where = dotted(path)
    return Fault(path=where, code=code, message=message, given=shown(where, given))
