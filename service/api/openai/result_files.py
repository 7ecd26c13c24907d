"""The results file of a job: its numbers of each step as CSV, made of the rows in SQL on reading.

It takes no space, its id is derived from the job's, and it is deleted with the job.
"""

import csv
import hashlib
import io
import re
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from itertools import groupby
from typing import Final

from sqlalchemy.orm import Session

from service.api.openai import metric_numbers
from service.api.problems.face import DerivedFile
from service.api.schemas.files import FileObject
from service.contract.states import Stage
from service.errors import JobNotFoundError, UploadNotFoundError
from service.store.jobs import queries
from service.store.scope import Scope
from service.store.tables.jobs import JobRow

PURPOSE: Final = "fine-tune-results"
FILENAME: Final = "step_metrics.csv"
_ID: Final = re.compile(r"file-results([0-9a-f]{1,36})")
_COLUMNS: Final = {
    "train_loss": "train_loss",
    "train_accuracy": "train_mean_token_accuracy",
    "valid_loss": "valid_loss",
    "valid_mean_token_accuracy": "valid_mean_token_accuracy",
}
"""OpenAI's columns, and its names for the same numbers in events."""


def ids_of(job: JobRow) -> list[str]:
    """One id as soon as the training is done and the job has ended: then no number changes."""
    is_final = job.ended_at is not None and Stage.TRAIN in job.results
    return [f"file-results{job.id.removeprefix('job-')}"] if is_final else []


def job_of(file_id: str) -> str | None:
    """The job's id; None for another file."""
    match = _ID.fullmatch(file_id)
    return None if match is None else f"job-{match[1]}"


def require(session: Session, scope: Scope, job_id: str) -> JobRow:
    """The job, if it has a results file. Raises UploadNotFoundError."""
    with suppress(JobNotFoundError):
        job = queries.get_job(session, scope, job_id)
        if ids_of(job):
            return job
    raise UploadNotFoundError(f"Job {job_id} has no results file.")


def make(session: Session, scope: Scope, job_id: str) -> DerivedFile:
    """To be closed by the caller. Raises UploadNotFoundError."""
    job = require(session, scope, job_id)
    assert job.ended_at is not None
    with ExitStack() as stack:
        content = stack.enter_context(tempfile.TemporaryFile())
        sha256 = hashlib.sha256()
        for line in _lines(session, scope, job_id):
            sha256.update(line)
            content.write(line)
        size = content.tell()
        content.seek(0)
        stack.pop_all()
    about = FileObject(
        id=ids_of(job)[0],
        project=job.project_id,
        bytes=size,
        created_at=int(job.ended_at.timestamp()),
        filename=FILENAME,
        purpose=PURPOSE,
        expires_at=None,
        sha256=sha256.hexdigest(),
    )
    return DerivedFile(about, content)


def _lines(session: Session, scope: Scope, job_id: str) -> Iterator[bytes]:
    yield _line(["step", *_COLUMNS])
    points = queries.metrics_by_step(session, scope, job_id)
    for step, rows in groupby(points, key=lambda row: row.step):
        numbers: dict[str, float | None] = {}
        for row in rows:
            numbers |= metric_numbers.by_name(row.kind, row.values)
        yield _line([step, *(numbers.get(name) for name in _COLUMNS.values())])


def _line(cells: Sequence[object]) -> bytes:
    text = io.StringIO()
    csv.writer(text, lineterminator="\n").writerow(cells)
    return text.getvalue().encode()
