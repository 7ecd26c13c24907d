"""Detecting a file's format, and the reader for each format."""

import json
from collections.abc import Callable
from typing import Final

from service.contract.failures import FailureCode, StageError
from service.contract.spec.dataset import DataFormat
from worker.data import delimited, document, text
from worker.data.table import Source, Table, unsupported


def _parquet(source: Source) -> Table:
    from worker.data import parquet  # its library is large, and most files are text

    return parquet.rows_of(source)


READERS: Final[dict[str, Callable[[Source], Table]]] = {
    "json": document.rows_of,
    "jsonl": text.jsonl,
    "csv": delimited.table,
    "parquet": _parquet,
    "text": text.text,
    "squad": document.squad,
}
_SUFFIXES: Final = {
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".csv": "csv",
    ".tsv": "csv",
    ".parquet": "parquet",
    ".txt": "text",
}
_HEAD_BYTES = 1024**2
_ZIP: Final = b"PK\x03\x04"


def open_table(source: Source, data_format: DataFormat) -> Table:
    """The rows of a file. StageError(empty_dataset) if it is empty."""
    if source.path.stat().st_size == 0:
        raise StageError(
            FailureCode.EMPTY_DATASET, f"{source.name} is empty (0 bytes)", file=source.name
        )
    return READERS[detect(source) if data_format == "auto" else data_format](source)


def detect(source: Source) -> str:
    """The format by the content or the name; uploads may have any name."""
    with source.path.open("rb") as file:
        head = file.read(_HEAD_BYTES)
    if head.startswith(b"PAR1"):
        return "parquet"
    if head.startswith(_ZIP):
        unsupported(
            source,
            "is an Excel file or another ZIP archive: save the sheet as `CSV UTF-8`, or unpack it",
        )
    by_name = _SUFFIXES.get(source.name[source.name.rfind(".") :].lower())
    if by_name is not None:
        return by_name
    begin = head.removeprefix(b"\xef\xbb\xbf").lstrip()
    if begin.startswith((b"[", b"{")):
        return _kind_of_json(source, begin)
    first = begin.partition(b"\n")[0]
    return "csv" if any(mark in first for mark in (b",", b";", b"\t")) else "text"


def _kind_of_json(source: Source, begin: bytes) -> str:
    first, newline, rest = begin.partition(b"\n")
    if begin.startswith(b"{") and newline and rest.strip() and _is_object(first):
        return "jsonl"
    if document.looks_like_squad(source):
        return "squad"
    one_row = begin.startswith(b"{") and not rest.strip() and b'"data"' not in first
    return "jsonl" if one_row else "json"


def _is_object(line: bytes) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
