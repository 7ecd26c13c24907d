"""Files: create, wait, list with pages, read, refuse, delete; and files in parts."""

import hashlib
import io
import json
from typing import Any

import openai

from tests.openai_clients.scripts.client import connected, exact, refused

LINE = {"messages": [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]}
ROWS = "".join(json.dumps(LINE) + "\n" for _ in range(12)).encode()


def main() -> None:
    client = connected(max_retries=0)
    files = [
        exact(client.files, "create", file=(f"{name}.jsonl", io.BytesIO(ROWS)), purpose="fine-tune")
        for name in ("one", "two", "three")
    ]
    newest = files[-1]
    assert (newest.object, newest.bytes, newest.purpose) == ("file", len(ROWS), "fine-tune")
    assert client.files.wait_for_processing(newest.id, poll_interval=0.1).status == "processed"
    assert exact(client.files, "retrieve", newest.id) == newest
    assert client.files.content(newest.id).read() == ROWS
    check_pages(client, [file.id for file in files])
    check_errors(client)
    files += [check_expiry(client), *check_uploads(client)]
    check_cancelled_upload(client)
    for file in files:
        assert exact(client.files, "delete", file.id).deleted is True
    refused(openai.NotFoundError, lambda: client.files.retrieve(newest.id))


def check_pages(client: openai.OpenAI, ids: list[str]) -> None:
    page = exact(client.files, "list", limit=2)
    assert [file.id for file in page] == ids[::-1]  # the client fetches the second page itself
    assert page.has_more is True
    assert page.has_next_page()
    after = exact(client.files, "list", after=ids[1], purpose="fine-tune")
    assert ([file.id for file in after.data], after.has_more) == (ids[:1], False)
    oldest = exact(client.files, "list", order="asc", limit=1)
    assert [file.id for file in oldest.data] == ids[:1]


def check_expiry(client: openai.OpenAI) -> Any:
    file = exact(
        client.files,
        "create",
        file=("brief.jsonl", io.BytesIO(ROWS)),
        purpose="fine-tune",
        expires_after={"anchor": "created_at", "seconds": 3600},
    )
    assert file.expires_at == file.created_at + 3600
    return file


def check_uploads(client: openai.OpenAI) -> list[Any]:
    """By hand, part by part; and as the client does it for large files."""
    begun: Any = {
        "bytes": len(ROWS),
        "filename": "parts.jsonl",
        "mime_type": "application/jsonl",
        "purpose": "fine-tune",
    }
    upload = exact(client.uploads, "create", **begun)
    assert (upload.status, upload.bytes) == ("pending", len(ROWS))
    middle = len(ROWS) // 2
    second, first = (
        exact(client.uploads.parts, "create", upload_id=upload.id, data=piece)
        for piece in (ROWS[middle:], ROWS[:middle])
    )
    md5 = hashlib.md5(ROWS).hexdigest()
    order: Any = {"part_ids": [first.id, second.id], "md5": md5}
    done = exact(client.uploads, "complete", upload.id, **order)
    assert (done.status, done.file.filename) == ("completed", "parts.jsonl")
    assert client.files.content(done.file.id).read() == ROWS
    chunked = client.uploads.upload_file_chunked(
        file=ROWS, part_size=100, **{**begun, "filename": "chunked.jsonl"}
    )
    assert chunked.file is not None
    assert client.files.content(chunked.file.id).read() == ROWS
    return [done.file, chunked.file]


def check_cancelled_upload(client: openai.OpenAI) -> None:
    upload = client.uploads.create(
        bytes=3, filename="a.jsonl", mime_type="application/jsonl", purpose="fine-tune"
    )
    assert exact(client.uploads, "cancel", upload.id).status == "cancelled"
    late = refused(
        openai.ConflictError, lambda: client.uploads.parts.create(upload.id, data=b"abc")
    )
    assert late.code == "upload_not_pending"


def check_errors(client: openai.OpenAI) -> None:
    missing = refused(openai.NotFoundError, lambda: client.files.retrieve("file-none"))
    assert missing.status_code == 404
    file = ("rows.jsonl", io.BytesIO(ROWS))
    wrong = refused(
        openai.APIStatusError,
        lambda: client.files.create(file=file, purpose="nonsense"),  # type: ignore[arg-type]
    )
    assert wrong.status_code in (400, 422)
    assert "purpose" in wrong.message


if __name__ == "__main__":
    main()
