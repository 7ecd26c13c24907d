"""The worst values in every query parameter, path parameter and header: never a 500."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final
from urllib.parse import quote

import pytest

from service.settings import Settings
from service.store.database import Database
from tests.api.conftest import running
from tests.api.factories import add_job
from tests.api.http.raw_http import Address, address_of, send, status_of
from tests.support.openapi import document

_VALUES: Final = (
    "",
    "%00",
    "%ff%fe",
    "%ed%a0%80",
    "%E2%80%AE",
    "%27%22%25_%5C",
    "9" * 5000,
    "-" + "9" * 18,
    "1e400",
    "nan",
    "inf",
    "%D9%A3",
    "0001-01-01T00:00:00%2B23:59",
    "9999-12-31T23:59:59-23:59",
    "1e11",
    "x" * 30_000,
    "a:%00",
    quote('{"type":' * 400),
    quote('{"type": "\\ud800"}'),
    quote('{"type": "question-answering", "null_score_diff_threshold": NaN}'),
    quote('{"type": "question-answering", "max_seq_length": 1e400}'),
    "%2e%2e%2f%2e%2e",
)
_USUAL: Final = "Host: localhost\r\nConnection: close\r\nContent-Length: 0\r\n"
_HEADERS: Final = (
    b"Idempotency-Key: \xff\xfe",
    b"Idempotency-Key: " + b"x" * 20_000,
    b"X-Request-Id: \xff" + b"x" * 20_000,
    b"Range: bytes=" + b"0-," * 5000 + b"0-",
    b"Range: bytes=" + b" " * 20_000 + b"x",
    b"Range: bytes=99999999999999999999999-",
    b"If-None-Match: " + b'"a",' * 6000,
    b"If-Range: \xff",
    b"If-Modified-Since: \xff",
    b"Authorization: Bearer \xff\x80",
    b"Authorization: Basic " + b"=" * 20_000,
    b"Content-Type: \xff",
    b"Content-Type: multipart/form-data; boundary=" + b"b" * 20_000,
    b'Content-Type: multipart/form-data; boundary="\xff"',
    b"Content-Type: application/json; charset=" + b"u" * 20_000,
    b"Accept-Language: " + b"a," * 9000,
    b"Cookie: " + b"a=b; " * 5000,
    b"Forwarded: for=" + b"x" * 20_000,
)


@pytest.fixture(scope="module")
def target(
    sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Address, str, dict[str, Any]]]:
    """An address, a job there, and the document."""
    folder = tmp_path_factory.mktemp("worst")
    path = folder / "finetune.db"
    path.write_bytes(sqlite_template.read_bytes())
    database = Database(f"sqlite:///{path}")
    # Its live streams end at once.
    job_id = add_job(database, state="succeeded")
    database.dispose()
    settings = Settings(home=folder, auth="off", redis_url="redis://127.0.0.1:1/0")
    with running(settings) as url:
        yield address_of(url), job_id, document()


def _requests(document: dict[str, Any], job_id: str) -> Iterator[str]:
    """Method and target, one value in one parameter each."""
    for path, operations in document["paths"].items():
        known = path.replace("{job_id}", job_id)
        for method, operation in operations.items():
            names = [p["name"] for p in operation.get("parameters", ()) if p["in"] == "query"]
            filled = re.sub(r"\{\w+\}", "1", known)
            for name in names:
                yield from (f"{method.upper()} {filled}?{name}={value}" for value in _VALUES)
                yield f"{method.upper()} {filled}?" + "&".join([f"{name}=1"] * 500)
            for place in re.findall(r"\{\w+\}", path):
                for value in _VALUES:
                    yield f"{method.upper()} {re.sub(r'{.*?}', '1', path.replace(place, value))}"


def _statuses(address: Address, requests: Iterator[bytes]) -> dict[bytes, int]:
    return {request[:120]: status_of(send(address, request, 10)) for request in requests}


def _wrong(statuses: dict[bytes, int]) -> dict[bytes, int]:
    """Each answered, and none with a fault of ours; health may lack its broker."""
    return {
        request: status
        for request, status in statuses.items()
        if not 200 <= status < 500 and b"/health/" not in request
    }


class TestWorstParameters:
    def test_in_each_path_and_query(self, target: tuple[Address, str, dict[str, Any]]) -> None:
        address, job_id, document = target
        requests = (
            f"{line} HTTP/1.1\r\n{_USUAL}\r\n".encode() for line in _requests(document, job_id)
        )
        statuses = _statuses(address, requests)
        assert len(statuses) > 500
        assert _wrong(statuses) == {}

    def test_in_headers(self, target: tuple[Address, str, dict[str, Any]]) -> None:
        address, job_id, _ = target
        lines = ("GET /v1/jobs", "POST /v1/jobs", "POST /v1/files", f"GET /v1/jobs/{job_id}")
        requests = (
            line.encode()
            + b" HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Length: 0\r\n"
            + header
            + b"\r\n\r\n"
            for header in _HEADERS
            for line in lines
        )
        assert _wrong(_statuses(address, requests)) == {}
