"""The limit on what prepared rows may take on the disk: a small file can become a large one."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.contract.failures import FailureCode, StageError

_GIB: Final = 1024**3
FLUSHED: Final = 64 * 1024**2
"""Bytes of texts after which rows are written, however few they are."""


@dataclass(frozen=True)
class SizeLimit:
    split: str
    most_bytes: int | None

    def check(self, file: Path, rows: int) -> None:
        """StageError(data_too_large) if `file`, which holds the first `rows`, is too large."""
        if self.most_bytes is None or not file.exists():
            return
        size = file.stat().st_size
        if size > self.most_bytes:
            raise StageError(
                FailureCode.DATA_TOO_LARGE,
                f"The first {rows:,} rows of the {self.split} split take {size / _GIB:.1f} GiB "
                f"when they are prepared; the operator allows {self.most_bytes / _GIB:.1f} GiB "
                "(FINETUNE_MAX_PREPARED_BYTES)",
                split=self.split,
                rows=rows,
                limit=self.most_bytes,
            )


UNLIMITED: Final = SizeLimit("", None)


def text_bytes(row: dict[str, Any]) -> int:
    """About the memory of a row's texts, and of its arrays of tokens."""
    return sum(
        len(value) if isinstance(value, str) else getattr(value, "nbytes", 0)
        for value in row.values()
    )
