"""The comparison with the client's types finds every kind of misfit."""

from typing import Any

import pytest
from openai.pagination import SyncCursorPage
from openai.types import FileObject, Upload

from tests.openai_clients.scripts.strict import misfits

FILE: dict[str, Any] = {
    "id": "file-1",
    "bytes": 1,
    "created_at": 2,
    "filename": "a.jsonl",
    "object": "file",
    "purpose": "fine-tune",
    "status": "processed",
    "project": "default",
    "sha256": "0",
}
UPLOAD: dict[str, Any] = {
    **{name: FILE[name] for name in ("id", "bytes", "created_at", "filename", "purpose")},
    "expires_at": 3,
    "object": "upload",
    "status": "completed",
    "file": FILE,
}


def without(name: str) -> dict[str, Any]:
    return {key: value for key, value in FILE.items() if key != name}


def test_what_fits_has_none() -> None:
    assert list(misfits(FILE, FileObject, "")) == []
    assert list(misfits({**FILE, "expires_at": None}, FileObject, "")) == []
    assert list(misfits(UPLOAD, Upload, "")) == []
    page = {"object": "list", "data": [FILE], "has_more": False}
    assert list(misfits(page, SyncCursorPage[FileObject], "")) == []


@pytest.mark.parametrize(
    ("data", "kind", "misfit"),
    [
        ({**FILE, "more": 1}, FileObject, "x: FileObject has no field 'more'"),
        (without("status"), FileObject, "x: lacks 'status'"),
        ({**FILE, "bytes": "1"}, FileObject, "x.bytes: str instead of int"),
        ({**FILE, "bytes": True}, FileObject, "x.bytes: bool instead of int"),
        ({**FILE, "created_at": 2.5}, FileObject, "x.created_at: float instead of int"),
        ({**FILE, "filename": None}, FileObject, "x.filename: NoneType instead of str"),
        ({**FILE, "object": "files"}, FileObject, "x.object: 'files' is none of ('file',)"),
        ({**UPLOAD, "file": without("id")}, Upload, "x.file: lacks 'id'"),
        ([], FileObject, "x: list instead of FileObject"),
        (
            {"data": [{**FILE, "id": 1}]},
            SyncCursorPage[FileObject],
            "x.data[0].id: int instead of str",
        ),
    ],
)
def test_each_misfit_is_found(data: Any, kind: Any, misfit: str) -> None:
    assert list(misfits(data, kind, "x")) == [misfit]
