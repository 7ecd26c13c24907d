"""`client.files`: uploaded data sets."""

from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from json import dumps
from pathlib import Path
from typing import Any, BinaryIO

from finetune_client import bodies, calls, downloads, flows
from finetune_client.transport import AsyncTransport, SyncTransport
from finetune_client.types import FileCheck, FileDeleted, FileObject

PURPOSE = "fine-tune"
Progress = Callable[[int], None]


def _listed(policy: flows.Policy, purpose: str | None) -> flows.Flow[None]:
    call = calls.get("/v1/files", bodies.query(limit=calls.PAGE, purpose=purpose))
    return flows.pages(policy, call, "id", lambda each: bodies.read(FileObject, each))


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
    """Parameters that are no texts or numbers are sent as JSON."""
    params = {
        name: value if isinstance(value, (str, int, float)) else dumps(value)
        for name, value in {"task": task, **options}.items()
    }
    return calls.check_file(file_id, params)


class Files:
    def __init__(self, transport: SyncTransport) -> None:
        self._transport = transport

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
            return self._answer(_creation(path, opened, purpose, progress, expires_after))

    def retrieve(self, file_id: str) -> FileObject:
        return self._answer(calls.get(calls.file(file_id)))

    def list(self, purpose: str | None = None) -> Iterator[FileObject]:
        """All files, the newest first; further pages are read as they are needed."""
        return self._transport.iterate(_listed(self._transport.policy, purpose))

    def check(self, file_id: str, task: str | Mapping[str, Any], **options: Any) -> FileCheck:
        """What a job would find wrong with its rows. `options`: `split`, `format`, `columns` and
        `max_bad_fraction`, as in `dataset`."""
        content = self._transport.run(
            flows.json(self._transport.policy, _check(file_id, task, options))
        )
        return bodies.read(FileCheck, content)

    def content(self, file_id: str, to: str | Path) -> Path:
        """Download the file as `to`, which appears when it is complete and its sha256 is right."""
        sha256 = self.retrieve(file_id).sha256
        path = calls.file(file_id, "content")
        return self._transport.run(downloads.file(self._transport.policy, path, Path(to), sha256))

    def delete(self, file_id: str) -> FileDeleted:
        call = calls.change("DELETE", calls.file(file_id))
        content = self._transport.run(flows.json(self._transport.policy, call))
        return bodies.read(FileDeleted, content)

    def _answer(self, call: calls.Call) -> FileObject:
        content = self._transport.run(flows.json(self._transport.policy, call))
        return bodies.read(FileObject, content)


class AsyncFiles:
    """The methods of `Files`, to await."""

    def __init__(self, transport: AsyncTransport) -> None:
        self._transport = transport

    async def create(
        self,
        path: str | Path,
        purpose: str = PURPOSE,
        progress: Progress | None = None,
        *,
        expires_after: float | None = None,
    ) -> FileObject:
        with Path(path).open("rb") as opened:  # noqa: ASYNC230 - read in parts of 64 kB
            return await self._answer(_creation(path, opened, purpose, progress, expires_after))

    async def retrieve(self, file_id: str) -> FileObject:
        return await self._answer(calls.get(calls.file(file_id)))

    def list(self, purpose: str | None = None) -> AsyncIterator[FileObject]:
        return self._transport.iterate(_listed(self._transport.policy, purpose))

    async def check(self, file_id: str, task: str | Mapping[str, Any], **options: Any) -> FileCheck:
        content = await self._transport.run(
            flows.json(self._transport.policy, _check(file_id, task, options))
        )
        return bodies.read(FileCheck, content)

    async def content(self, file_id: str, to: str | Path) -> Path:
        sha256 = (await self.retrieve(file_id)).sha256
        path = calls.file(file_id, "content")
        return await self._transport.run(
            downloads.file(self._transport.policy, path, Path(to), sha256)
        )

    async def delete(self, file_id: str) -> FileDeleted:
        call = calls.change("DELETE", calls.file(file_id))
        content = await self._transport.run(flows.json(self._transport.policy, call))
        return bodies.read(FileDeleted, content)

    async def _answer(self, call: calls.Call) -> FileObject:
        content = await self._transport.run(flows.json(self._transport.policy, call))
        return bodies.read(FileObject, content)
