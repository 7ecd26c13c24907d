"""About how many rows a file has, without reading its rows."""

from typing import Final

import pyarrow.parquet as pq

from service.contract.spec.dataset import DataFormat
from worker.data.formats import detect
from worker.data.table import Source

_COUNTED: Final = 64 * 1024**2
"""Bytes of a file whose lines are counted; the rest has as many lines to the byte."""
_BLOCK: Final = 1024**2
_LINES: Final = {"jsonl": 0, "text": 0, "csv": 1}
"""Format → how many of its lines are not rows."""


def estimate(source: Source, data_format: DataFormat) -> int | None:
    """None for a document, whose rows are not lines. The file is known to be readable."""
    kind = detect(source) if data_format == "auto" else data_format
    if kind == "parquet":
        return int(pq.read_metadata(source.path).num_rows)
    if kind not in _LINES:
        return None
    return max(_lines(source) - _LINES[kind], 0)


def _lines(source: Source) -> int:
    """A last line without an end counts as well."""
    size, read, lines, last = source.path.stat().st_size, 0, 0, b"\n"
    with source.path.open("rb") as file:
        while read < _COUNTED and (block := file.read(_BLOCK)):
            read += len(block)
            lines += block.count(b"\n")
            last = block[-1:]
    if read == size:
        return lines + (last != b"\n")
    return round(lines * size / read)
