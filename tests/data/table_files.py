"""Files of rows, and what is read from them."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from worker.data.formats import open_table
from worker.data.table import RowError, Source


def source(folder: Path, name: str, content: bytes) -> Source:
    path = folder / "stored"  # the name that the user knows need not be that on disk
    path.write_bytes(content)
    return Source(path, name)


def read(file: Source, data_format: Any = "auto", wanted: tuple[str, ...] = ("a", "b")) -> Any:
    return list(open_table(file, data_format).rows(wanted))


def failure(file: Source, data_format: Any = "auto") -> tuple[FailureCode, str]:
    """What makes the rest of the file unreadable."""
    with pytest.raises(StageError) as caught:
        read(file, data_format)
    return caught.value.failure.code, caught.value.failure.message


def faults(file: Source, data_format: Any = "auto") -> list[str]:
    """Of the rows that cannot be read, between others that can."""
    return [
        f"{place}: {row}" for place, row in read(file, data_format) if isinstance(row, RowError)
    ]
