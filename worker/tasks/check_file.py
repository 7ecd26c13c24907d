"""Checks the rows of a file without a job: `python -m worker.tasks.check_file`.

Reads a Request as JSON from standard input and writes an Answer as JSON to standard output. Files
are untrusted and this runs on the API server, so the process first limits its own memory, CPU time
and file size; if that is not enough, its caller kills it.
"""

import json
import os
import resource
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from service.contract.failures import Failure, FailureCode, StageError
from service.contract.interactive import next_steps
from service.contract.spec.dataset import UploadDataset
from service.contract.spec.spec import JobSpec
from service.contract.tasks import chat_format
from worker.data.cleaning import RowChecker
from worker.data.inferences import Inferences
from worker.data.table import Cleaner, Row, RowError, Source, Table
from worker.data.usable_rows import Policy, Split, by_reason, listed

_MIB: Final = 1024**2
_ROWS_PER_CLOCK_CHECK: Final = 64  # rows between two checks of the time


@dataclass(frozen=True)
class Request:
    path: str
    name: str
    """The name of the file in messages."""
    split: str
    spec: dict[str, Any]
    """A job that would use the file."""
    seconds: float
    """The time limit, after which the remaining rows are not read."""
    memory_mib: int


@dataclass(frozen=True)
class Answer:
    format: str | None
    complete: bool
    rows_read: int
    rows_usable: int
    rows_bad: int
    bad_by_reason: dict[str, int]
    bad_rows: list[dict[str, str]]
    realigned: int
    usable_with: list[str]
    """Values of `dataset.on_bad_row` with which a job could use the file."""
    failure: dict[str, Any] | None
    """How a job would fail with any value of `dataset.on_bad_row`."""


def main() -> None:
    request = Request(**json.load(sys.stdin))
    _limit(request)
    # Memory that pyarrow only reserves counts towards the limit as well.
    os.environ |= {"ARROW_DEFAULT_MEMORY_POOL": "system", "ARROW_IO_THREADS": "1"}
    os.environ |= {"OMP_NUM_THREADS": "1", "OMP_THREAD_LIMIT": "1"}
    json.dump(asdict(_answer(request)), sys.stdout)


def _limit(request: Request) -> None:
    seconds = int(request.seconds * 2) + 5
    for kind, value in (
        (resource.RLIMIT_AS, request.memory_mib * _MIB),
        (resource.RLIMIT_CPU, seconds),
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
    ):
        resource.setrlimit(kind, (value, value))


def _answer(request: Request) -> Answer:
    spec = JobSpec.model_validate(request.spec)
    dataset = spec.dataset
    assert isinstance(dataset, UploadDataset)
    source = Source(Path(request.path), request.name, spec.task.keeps_line_ends())
    reading = _Reading(source, dataset.format, request.seconds)
    checking: RowChecker | None = None
    failure: Failure | None = None
    try:
        checking = _checking(request, spec, reading)
        for _row in checking.rows([reading.table()]):
            pass
    except StageError as error:
        failure = error.failure
    except MemoryError:
        memory = f"needs more than {request.memory_mib} MiB of memory to be checked"
        failure = Failure.from_code(
            FailureCode.UNREADABLE_ROW,
            f"{reading.place}: {memory}",
            action="Split the file or shorten its rows; or leave out this check: a worker has more "
            "memory.",
        )
    except ImportError as error:
        message = f"The API server cannot check this file: the package {error.name} is missing"
        failure = Failure.from_code(
            FailureCode.UNSUPPORTED_FORMAT,
            message,
            action="Have the operator install it; or leave out this check: workers have it.",
        )
    tally = checking.tally if checking is not None else None
    names = [request.name]
    usable: list[str] = []
    if failure is None and tally is not None:
        usable, failure = _usable_with(Split(request.split, tally, names), dataset.max_bad_fraction)
    if failure is not None:  # the answer already contains its details
        failure = next_steps.of_preview(failure.model_copy(update={"details": {}}))
    return Answer(
        format=_format(source, dataset.format),
        complete=failure is None and not reading.is_late,
        rows_read=tally.read if tally else 0,
        rows_usable=tally.used if tally else 0,
        rows_bad=tally.bad if tally else 0,
        bad_by_reason=by_reason(tally) if tally else {},
        bad_rows=listed(tally, names) if tally else [],
        realigned=tally.changes.get("realigned", 0) if tally else 0,
        usable_with=usable,
        failure=failure.model_dump(mode="json") if failure is not None else None,
    )


def _checking(request: Request, spec: JobSpec, reading: "_Reading") -> RowChecker:
    """With the parameters that follow from all rows. Raises StageError if they do not decide."""
    from worker.tasks import row_checks

    task = spec.task.type
    finder = row_checks.finder(task, spec.columns, Inferences())

    def calling(clean: Cleaner) -> RowChecker:
        return RowChecker(
            row_checks.columns(task, request.split, spec.columns, spec.task),
            clean,
            limit=None,
            skips=True,
            openai_checks=chat_format.openai_checks(task),
            finder=finder,
        )

    readers = {request.split: lambda detector: calling(detector).rows([reading.table()])}
    parameters = row_checks.decided(task, spec.task, readers, Inferences())
    return calling(row_checks.ROW_CHECKS[task].cleaner(request.split, parameters))


def _usable_with(split: Split, max_bad_fraction: float) -> tuple[list[str], Failure | None]:
    """The values of `dataset.on_bad_row` with which a job can use the rows, and why none can.

    There is a failure only if no single row is bad, for example because there are no rows.
    """
    policies = {
        "fail": Policy(skips=False, max_bad_fraction=0),
        "skip": Policy(skips=True, max_bad_fraction=max_bad_fraction),
    }
    refusals = {name: policy.problem([split]) for name, policy in policies.items()}
    usable = [name for name, problem in refusals.items() if problem is None]
    refusal = refusals["fail"]
    return usable, refusal.failure if refusal is not None and not split.tally.bad else None


def _format(source: Source, given: str) -> str | None:
    from worker.data.formats import detect

    try:
        return given if given != "auto" else str(detect(source))
    except (OSError, MemoryError):
        return None


class _Reading:
    """Reads a file to its end or until the time limit, and keeps track of the position."""

    def __init__(self, source: Source, data_format: Any, seconds: float) -> None:
        self._source = source
        self._format = data_format
        self._until = time.monotonic() + seconds
        self.place = source.name
        self.is_late = False

    def table(self) -> Table:
        from worker.data.formats import open_table

        table = open_table(self._source, self._format)

        def rows(columns: Any) -> Iterator[tuple[str, Row | RowError]]:
            for number, (place, row) in enumerate(table.rows(columns)):
                self.place = f"after {place}"
                yield place, row
                if number % _ROWS_PER_CLOCK_CHECK == 0 and time.monotonic() > self._until:
                    self.is_late = True
                    return

        return Table(table.columns, rows, table.name)


if __name__ == "__main__":
    main()
