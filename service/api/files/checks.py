"""Checks the rows of an uploaded file for a task, without a job."""

import json
import os
import subprocess
import threading
from pathlib import Path
from typing import Annotated, Any, Final, Literal

from fastapi import APIRouter, Query

from service.api.faults.collect import collect
from service.api.faults.redaction import shown
from service.api.http.body import parse_json
from service.api.http.dependencies import DatabaseDep, SettingsDep
from service.api.http.principal import FilesWrite
from service.api.openapi.document import problems
from service.api.problems.errors import (
    InvalidJsonError,
    InvalidRequestError,
    InvalidSpecError,
    TooManyChecksError,
)
from service.api.schemas.files import FileCheck
from service.api.schemas.problems import Fault
from service.contract.failures import Failure, FailureCode
from service.contract.spec.dataset import MAX_BAD_FRACTION, DataFormat
from service.contract.spec.spec import JobSpec
from service.contract.tasks.tasks import TASKS
from service.store.files import files
from service.system import own_packages

router = APIRouter(prefix="/v1/files", tags=["files"])

SECONDS: Final = 20.0
MEMORY_MIB: Final = 1024
_AT_ONCE: Final = 2
_PATIENCE: Final = 10.0
"""Seconds beyond SECONDS after which the check is killed: one row may take long."""
_LONGEST_ANSWER: Final = 1024**2
_PASSED_ON: Final = ("PATH", "PYTHONPATH", "LD_LIBRARY_PATH", "LANG", "LC_ALL", "HOME")
"""Variables passed on from the API's environment, which holds secrets."""
_LONGEST_TASK: Final = 4000
_LONGEST_COLUMNS: Final = 1000
"""Characters. Escaped, one takes up to 12 bytes, and uvicorn reads a URL of up to 65,535."""
_slots = threading.BoundedSemaphore(_AT_ONCE)


_Task = Annotated[
    str,
    Query(
        max_length=_LONGEST_TASK,
        description="A task's name, or as JSON the `task` of a spec, with its parameters.",
        examples=["question-answering"],
    ),
]
_Split = Annotated[
    Literal["train", "validation", "test"],
    Query(description="What the file would be used as: test rows need no labels."),
]
_Format = Annotated[DataFormat, Query(alias="format", description="As in `dataset`.")]
_Columns = Annotated[
    str,
    Query(
        max_length=_LONGEST_COLUMNS,
        description="`dataset.columns` as JSON: the task's column → yours.",
        examples=['{"context": "passage"}'],
    ),
]
_MaxBadFraction = Annotated[float, Query(ge=0, le=1, description="As in `dataset`.")]


@router.post(
    "/{file_id}/check",
    summary="Check the rows of a file",
    responses=problems(401, 404, 422, 429, 503),
)
def check_file(
    principal: FilesWrite,
    file_id: str,
    database: DatabaseDep,
    settings: SettingsDep,
    task: _Task,
    split: _Split = "train",
    data_format: _Format = "auto",
    columns: _Columns = "{}",
    max_bad_fraction: _MaxBadFraction = MAX_BAD_FRACTION,
) -> FileCheck:
    """Finds the faults in its rows that `prepare` would find before it tokenizes them.

    Reads for at most 20 s (`complete` says whether that was enough) in a process of its own. Two
    files are checked at a time.
    """
    with database.read() as session:
        row = files.get(session, principal.scope, file_id)
    dataset = {"source": "upload", "train": [row.id], "format": data_format}
    dataset |= {"columns": _json("columns", columns), "on_bad_row": "skip"}
    spec = _spec(
        _json("task", task) if task.lstrip().startswith("{") else task,
        dataset | {"max_bad_fraction": max_bad_fraction},
    )
    request = {
        "path": str(settings.files_dir / row.id),
        "name": row.filename,
        "split": split,
        "spec": spec.model_dump(mode="json"),
        "seconds": SECONDS,
        "memory_mib": MEMORY_MIB,
    }
    return FileCheck(
        file_id=row.id,
        filename=row.filename,
        task=spec.task.type,
        split=split,
        **_run_in_slot(request),
    )


def _run_in_slot(request: dict[str, Any]) -> dict[str, Any]:
    if not _slots.acquire(blocking=False):
        raise TooManyChecksError(f"{_AT_ONCE} files are being checked. Try again in a moment.")
    try:
        return _run(request)
    finally:
        _slots.release()


def _json(name: str, text: str) -> Any:
    try:
        return parse_json(text.encode("utf-8", "surrogatepass"))
    except InvalidJsonError:
        fault = Fault(
            path=f"query.{name}",
            code="invalid_value",
            message="is not valid JSON",
            given=shown(name, text),
        )
        raise InvalidRequestError([fault]) from None


def _spec(task: Any, dataset: dict[str, Any]) -> JobSpec:
    """A job that would use the file; InvalidSpecError names what is wrong with it."""
    findings = collect({"task": task, "model": {"name_or_path": "any"}, "dataset": dataset})
    if findings.faults or findings.spec is None:
        raise InvalidSpecError(findings.faults)
    assert findings.spec.task.type in TASKS
    return findings.spec


def _run(request: dict[str, Any]) -> dict[str, Any]:
    """The output of a process that may crash or be killed."""
    environment = {name: os.environ[name] for name in _PASSED_ON if name in os.environ}
    module = "worker.tasks.check_file"
    command = own_packages.python("worker.processes.parent_death", str(os.getpid()), module)
    try:
        ended = subprocess.run(
            command,
            input=json.dumps(request).encode(),
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environment,
            start_new_session=True,
            timeout=SECONDS + _PATIENCE,
            check=True,
        )
        answer: dict[str, Any] = json.loads(ended.stdout[:_LONGEST_ANSWER])
    except (subprocess.SubprocessError, ValueError):
        return _no_answer(Path(request["path"]))
    return answer


def _no_answer(path: Path) -> dict[str, Any]:
    is_removed = not path.is_file()
    what = "was removed" if is_removed else f"needs more than {MEMORY_MIB} MiB or {SECONDS:.0f} s"
    failure = Failure.from_code(
        FailureCode.UNREADABLE_ROW,
        f"The file {what}: it could not be checked",
        action="Upload it again."
        if is_removed
        else "Split the file or shorten its rows; or leave out this check: a worker has more "
        "memory and time.",
    )
    return {"failure": failure.model_dump(mode="json")}
