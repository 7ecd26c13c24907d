"""Every route, asked by everybody: what another project owns is exactly what does not exist."""

import json
import re
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from string import Template
from typing import Any, Final

import pytest
from anyio.from_thread import start_blocking_portal
from fastapi import FastAPI
from fastapi.testclient import TestClient
from pydantic import SecretStr

from service.api.app import create_app
from service.api.http.principal import PROJECT_HEADER, needs_of, permissions_of
from service.api.openapi.access import documented_routes
from service.contract.roles import Permission, Role
from service.settings import Settings
from service.store.database import Database
from tests.api.matrix.rows import ANY_KEY, OPEN, ROWS, Row, Way
from tests.api.matrix.world import SECRET, Names, World

MANY: Final = 2000
NAMED: Final = ("", "$project", "$project_name")
"""What the header FineTune-Project says."""
REFUSED: Final = ("no key", "revoked", "expired")
ROLES: Final = {"admin": Role.ADMIN, "member": Role.MEMBER, "viewer": Role.VIEWER}
ROUTES: Final = sorted(ROWS)


@dataclass
class Asked:
    answer: Any
    request: str
    """All that was sent."""


class Matrix:
    def __init__(self, world: World, client: TestClient) -> None:
        self.world = world
        self.client = client
        self.cells = 0

    def ask(self, who: str, route: str, way: Way, names: Names, project: str = "") -> Asked:
        """Ask in this way, with what it calls by name."""
        self.cells += 1

        def fill(text: str) -> str:
            return Template(text).substitute(names)

        sent: dict[str, Any] = {"headers": {name: fill(value) for name, value in way.headers}}
        if project:
            sent["headers"][PROJECT_HEADER] = fill(project)
        if way.body is not None:
            sent["json"] = json.loads(fill(json.dumps(way.body)))
        if way.form:
            sent |= {"files": {"file": ("own.jsonl", b"{}\n")}, "data": {"purpose": "fine-tune"}}
        path, request = fill(way.path), repr((fill(way.path), sent))
        key = self.world.callers[who]
        if key is not None:
            sent["headers"]["Authorization"] = f"Bearer {key}"
        return Asked(self.client.request(route.split()[0], path, **sent), request)

    def leaks(self, asked: Asked) -> list[str]:
        """What of the owner's is in the answer and was not in the request."""
        answer = asked.answer
        text = f"{answer.headers}{answer.content.decode('utf-8', 'replace')}"
        secrets = {SECRET, *self.world.owner.values()}
        return sorted(each for each in secrets if each in text and each not in asked.request)


def _comparable(asked: Asked, names: Names) -> tuple[int, Any, str]:
    """The answer with the names of what was asked for in the place of the things themselves."""
    answer = asked.answer
    makes = answer.request.method != "GET"
    if makes and (answer.is_success or "idempotency_key_reused" in answer.text):
        return answer.status_code, None, ""  # it names their own new job
    body = answer.text
    for name, text in sorted(names.items(), key=lambda item: -len(item[1])):
        body = body.replace(text, f"${name}")
    body = re.sub(r'"request_id":"\w+"', "", body)
    own = ("x-request-id", "openai-processing-ms")
    headers = {key: value for key, value in answer.headers.items() if key not in own}
    return answer.status_code, headers, body


def _expected(row: Row, who: str, way: Way) -> int:
    if row.needs == OPEN:
        return way.ok
    if who in REFUSED:
        return 401
    if row.needs is ANY_KEY:
        return way.ok
    held = {Permission.FILES_READ} if who == "files only" else permissions_of(ROLES[who])
    return way.ok if row.needs in held else 403


@pytest.fixture(scope="module")
def matrix(sqlite_template: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Matrix]:
    home = tmp_path_factory.mktemp("home")
    shutil.copy(sqlite_template, home / "finetune.db")
    url = f"sqlite:///{home / 'finetune.db'}"
    settings = Settings(home=home, database_url=SecretStr(url), hub_token=SecretStr("hf_x"))
    database = Database(url)
    world = World(database, settings).build()
    # No lifespan: nothing of this app runs in the background.
    client = TestClient(
        create_app(settings), base_url="http://127.0.0.1", raise_server_exceptions=False
    )
    with start_blocking_portal() as client.portal:  # or each request starts a loop of its own
        yield Matrix(world, client)
    database.dispose()


class TestRows:
    def test_every_route_of_the_document_has_a_row(self, matrix: Matrix) -> None:
        document = matrix.client.app.openapi()  # type: ignore[attr-defined]
        routes = {
            f"{method.upper()} {path}"
            for path, operations in document["paths"].items()
            for method in operations
            if method != "parameters"
        }
        assert routes == set(ROWS)

    def test_every_route_declares_what_its_row_says(self, matrix: Matrix) -> None:
        app = matrix.client.app
        assert isinstance(app, FastAPI)
        found = {
            f"{method} {route.path_format}": needs_of(route.dependant)
            for route in documented_routes(app)
            for method in route.methods or ()
        }
        assert found == {
            name: [] if row.needs == OPEN else [row.needs] for name, row in ROWS.items()
        }
        # And the document says it.
        document = app.openapi()["paths"]
        for name, needs in found.items():
            method, path = name.split()
            says = document[path][method.lower()]["security"]
            assert says == [{"key": [] if need is None else [str(need)]} for need in needs], name


class TestEverybodyElse:
    def test_no_other_project_learns_of_it_or_changes_it(self, matrix: Matrix) -> None:
        """All cells but the owner's; the number of them is the promise of docs/security.md."""
        before = self.owned(matrix)
        wrong = [line for route in ROUTES for line in self.faults(matrix, route)]
        assert not wrong, "\n".join(wrong[:40])
        assert self.owned(matrix) == before
        assert matrix.cells >= MANY

    @staticmethod
    def owned(matrix: Matrix) -> dict[str, list[Any]]:
        """Rows with an id of the owner's."""
        ids = [
            text for text in matrix.world.owner.values() if re.match(r"[a-z]+-[0-9a-f]{20}", text)
        ]
        assert len(ids) >= 9
        return {
            table: [row for row in rows if any(each in row for each in ids)]
            for table, rows in matrix.world.rows().items()
        }

    def faults(self, matrix: Matrix, route: str) -> Iterator[str]:
        row, names, missing = ROWS[route], matrix.world.owner, matrix.world.missing()
        for way in row.ways:
            for who in REFUSED:
                asked = matrix.ask(who, route, way, names, NAMED[matrix.cells % len(NAMED)])
                yield from self.checked(matrix, who, asked, _expected(row, who, way))
            for named in NAMED:
                asked = matrix.ask("stranger", route, way, names, named)
                expected = way.ok if row.needs == OPEN else None
                yield from self.checked(matrix, "stranger", asked, expected)
                twin = matrix.ask("stranger", route, way, missing, named)
                if _comparable(asked, names) != _comparable(twin, missing):
                    yield (
                        f"{asked.request}: not the answer of a missing one:\n"
                        f"  {asked.answer.status_code} {asked.answer.text[:300]}\n"
                        f"  {twin.answer.status_code} {twin.answer.text[:300]}"
                    )
            for who in ("viewer", "files only", "member"):
                expected = _expected(row, who, way)
                if expected == 403:
                    asked = matrix.ask(who, route, way, names)
                    yield from self.checked(matrix, who, asked, expected, may_see=True)

    @staticmethod
    def checked(
        matrix: Matrix, who: str, asked: Asked, expected: int | None, *, may_see: bool = False
    ) -> Iterator[str]:
        status = asked.answer.status_code
        if status >= 500 and expected != status:
            yield f"{who} {asked.request}: {status} {asked.answer.text[:300]}"
        if expected not in (None, status):
            yield f"{who} {asked.request}: {status}, not {expected}: {asked.answer.text[:300]}"
        if not may_see and (leaked := matrix.leaks(asked)):
            yield f"{who} {asked.request}: {status} leaks {leaked}"


class TestTheOwner:
    # What an admin or the operator may is on each route, above, as the document declares it.
    @pytest.mark.parametrize(
        "who",
        [
            *("member", "viewer", "files only"),
            *(pytest.param(who, marks=pytest.mark.heavy) for who in ("admin", "operator")),
        ],
    )
    def test_is_answered(self, matrix: Matrix, who: str) -> None:
        """Or the rows would ask for nothing."""
        wrong = []
        for route in ROUTES:
            row, method = ROWS[route], route.split()[0]
            for way in row.ways:
                names = matrix.world.owner
                expected = way.ok if who == "operator" else _expected(row, who, way)
                named = "$" in way.path.partition("?")[0]
                if named and method != "GET" and expected != 403:  # it may be used up
                    names = matrix.world.objects(names["project"])
                project = "$project" if who == "operator" and not row.of_all_projects else ""
                asked = matrix.ask(who, route, way, names, project)
                if asked.answer.status_code != expected:
                    text = asked.answer.text[:500]
                    wrong.append(f"{asked.request}: {asked.answer.status_code}≠{expected}: {text}")
        assert not wrong, "\n".join(wrong[:20])
