"""`client.files`: uploaded data sets."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import Any, BinaryIO

from finetune_client.http import calls, downloads
from finetune_client.http.transport import AsyncResource, Resource
from finetune_client.types import FileCheck, FileDeleted, FileObject

PURPOSE = "fine-tune"
Progress = Callable[[int], None]


def _creation(
    path: str | Path,
    opened: BinaryIO,
    purpose: str,
    progress: Progress | None,
    expires_after: float | None,
) -> calls.Call:
    fields = calls.expiry(expires_after)
    return calls.create_file(calls.Upload(Path(path).name, opened, purpose, progress, fields))


def _check(file_id: str, task: str | Mapping[str, Any], options: Mapping[str, Any]) -> calls.Call:
    """Parameters other than texts and numbers are sent as JSON."""
    params = {
        name: value if isinstance(value, (str, int, float)) else dumps(value)
        for name, value in {"task": task, **options}.items()
    }
    return calls.check_file(file_id, params)


class Files(Resource):
    def create(
        self,
        path: str | Path,
        purpose: str = PURPOSE,
        progress: Progress | None = None,
        *,
        expires_after: float | None = None,
    ) -> FileObject:
        """Upload a file; `progress` is called with the bytes of each part. It is removed by itself
        `expires_after` seconds later. Not sent again after a lost answer: a second file would cost
        space."""
        with Path(path).open("rb") as opened:
            return self._read(FileObject, _creation(path, opened, purpose, progress, expires_after))

    def retrieve(self, file_id: str) -> FileObject:
        return self._read(FileObject, calls.get(calls.file(file_id)))

    def list(self, purpose: str | None = None) -> Iterator[FileObject]:
        """All files, the newest first; further pages are read as they are needed."""
        return self._pages(FileObject, "/v1/files", purpose=purpose)

    def check(self, file_id: str, task: str | Mapping[str, Any], **options: Any) -> FileCheck:
        """What a job would find wrong with its rows. `options`: `split`, `format`, `columns` and
        `max_bad_fraction`, as in `dataset`."""
        return self._read(FileCheck, _check(file_id, task, options))

    def content(self, file_id: str, to: str | Path) -> Path:
        """Download the file as `to`, which appears when it is complete and its sha256 is right."""
        sha256 = self.retrieve(file_id).sha256
        path = calls.file(file_id, "content")
        return self._transport.run(downloads.file(self._policy, path, Path(to), sha256))

    def delete(self, file_id: str) -> FileDeleted:
        return self._read(FileDeleted, calls.change("DELETE", calls.file(file_id)))


class AsyncFiles(AsyncResource):
    """The methods of `Files`, to await."""

    async def create(
        self,
        path: str | Path,
        purpose: str = PURPOSE,
        progress: Progress | None = None,
        *,
        expires_after: float | None = None,
    ) -> FileObject:
        with Path(path).open("rb") as opened:  # noqa: ASYNC230 - read in parts of 64 kB
            call = _creation(path, opened, purpose, progress, expires_after)
            return await self._read(FileObject, call)

    async def retrieve(self, file_id: str) -> FileObject:
        return await self._read(FileObject, calls.get(calls.file(file_id)))

    def list(self, purpose: str | None = None) -> AsyncIterator[FileObject]:
        return self._pages(FileObject, "/v1/files", purpose=purpose)

    async def check(self, file_id: str, task: str | Mapping[str, Any], **options: Any) -> FileCheck:
        return await self._read(FileCheck, _check(file_id, task, options))

    async def content(self, file_id: str, to: str | Path) -> Path:
        sha256 = (await self.retrieve(file_id)).sha256
        path = calls.file(file_id, "content")
        return await self._transport.run(downloads.file(self._policy, path, Path(to), sha256))

    async def delete(self, file_id: str) -> FileDeleted:
        return await self._read(FileDeleted, calls.change("DELETE", calls.file(file_id)))
