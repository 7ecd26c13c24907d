"""The sources of each split's rows: the Hub at a commit, uploads, or allowed paths."""

import hashlib
import stat
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any, Protocol

from service.contract.failures import FailureCode, StageError
from service.contract.fields.paths import PathNotAllowedError, resolve_under_roots
from service.contract.spec import splits
from service.contract.spec.dataset import DataFormat, HubDataset, UploadDataset
from service.contract.stage.stages import StageRequest
from worker import failures
from worker.data import hub, row_counts
from worker.data.formats import open_table
from worker.data.table import Source, Table


class Data(Protocol):
    """The resolved data of a job."""

    revision: str | None
    """Commit hash, if it comes from the Hub."""

    def splits(self) -> tuple[str, ...]: ...

    def fingerprint(self) -> Any:
        """JSON that identifies the content of every split; equal content has equal fingerprints."""

    def names(self, split: str) -> list[str]:
        """The user's names of a split's tables, in order."""

    def rows(self, split: str) -> int | None:
        """About how many rows a split has; None if that is known only after reading them all."""

    def tables(self, split: str) -> Iterator[Table]:
        """The tables of a split, one after the other; this may download."""


def resolve(request: StageRequest, progress: Callable[[int, int], None]) -> Data:
    """Find the data: the commit on the Hub, or all files. StageError if it is not found.

    A job that is prepared again uses the same commit as before.
    """
    spec, given = request.spec.dataset, splits.used(request.spec)
    if isinstance(spec, HubDataset):
        before = request.prepared
        if before is not None and before.dataset_revision is not None:
            spec = spec.model_copy(update={"revision": before.dataset_revision})
        return hub.HubData(spec, given, request.project_cache)
    locate = _uploads(request) if isinstance(spec, UploadDataset) else _paths(request)
    keep = request.spec.task.keeps_line_ends()
    files = {
        split: [replace(locate(name), keep_line_ends=keep) for name in names]
        for split, names in given.items()
    }
    return FileData(spec.format, files, progress)


class FileData:
    revision: str | None = None

    def __init__(
        self,
        data_format: DataFormat,
        files: dict[str, list[Source]],
        progress: Callable[[int, int], None],
    ) -> None:
        self._format = data_format
        self._files = files
        self._progress = progress
        paths = dict.fromkeys(source.path for part in files.values() for source in part)
        for path in paths:
            path.open("rb").close()  # one that cannot be read is found before any download
        self._states = {path: _state(path) for path in paths}

    def splits(self) -> tuple[str, ...]:
        return tuple(self._files)

    def fingerprint(self) -> Any:
        """Reads every file to its end."""
        hashes = self._hashes()
        files = {
            # `auto` finds the format by the suffix.
            split: [[hashes[source.path], Path(source.name).suffix] for source in sources]
            for split, sources in self._files.items()
        }
        return {"files": files, "format": self._format}

    def _hashes(self) -> dict[Path, str]:
        found = {}
        for path in self._states:
            with path.open("rb") as stream:
                found[path] = hashlib.file_digest(stream, "sha256").hexdigest()
            self._progress(len(found), len(self._states))
        return found

    def names(self, split: str) -> list[str]:
        return [source.name for source in self._files[split]]

    def rows(self, split: str) -> int | None:
        counts = [row_counts.estimate(source, self._format) for source in self._files[split]]
        known = [count for count in counts if count is not None]
        return sum(known) if len(known) == len(counts) else None

    def tables(self, split: str) -> Iterator[Table]:
        for source in self._files[split]:
            yield open_table(source, self._format)
            if _state(source.path) != self._states[source.path]:
                raise StageError(
                    FailureCode.UNREADABLE_ROW,
                    f"{source.name} was changed while it was being read; submit the job again",
                    file=source.name,
                )


def _state(path: Path) -> tuple[int, int]:
    status = path.stat()
    return status.st_size, status.st_mtime_ns


def _uploads(request: StageRequest) -> Callable[[str], Source]:
    def locate(file_id: str) -> Source:
        path = request.files.get(file_id)
        if path is None or not path.is_file():
            raise _not_found(f"The uploaded file {file_id} no longer exists")
        return Source(path, _name(request, file_id))

    return locate


def _name(request: StageRequest, file_id: str) -> str:
    """The name that the user knows; with the id if another of the job's files has the same name."""
    name = request.file_names.get(file_id) or file_id
    is_unique = list(request.file_names.values()).count(name) <= 1
    return name if is_unique else f"{file_id}/{name}"


def _paths(request: StageRequest) -> Callable[[str], Source]:
    def locate(value: str) -> Source:
        try:
            path = resolve_under_roots(value, request.data_roots, "FINETUNE_DATA_ROOTS")
            mode = path.stat().st_mode
        except PathNotAllowedError as error:
            raise _not_found(f"The data set {error}") from error
        except OSError as error:
            raise _not_found(f"{value!r} cannot be read: {failures.describe(error)}") from error
        if not stat.S_ISREG(mode):  # a pipe would never end, a folder has no rows
            raise _not_found(f"{value!r} is not a regular file")
        return Source(path, Path(value).name)

    return locate


def _not_found(message: str) -> StageError:
    return StageError(FailureCode.DATASET_NOT_FOUND, message)
