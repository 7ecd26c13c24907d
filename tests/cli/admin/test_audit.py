"""What the operator's commands leave in the audit log, and how `finetune audit` shows it."""

import io
import os
import pwd
from pathlib import Path
from typing import Any

import httpx
import pytest

from service.cli.terminal import local_database, local_key
from service.contract.roles import Role
from service.store.database import Database
from service.store.projects import audit, keys
from service.store.projects.keys import Grant
from service.store.scope import EVERYTHING
from service.store.tables.teams import AuditRow
from tests.cli.conftest import Cli
from tests.support.store.projects import make_project

ME = pwd.getpwuid(os.getuid()).pw_name


def log(store: Database) -> list[AuditRow]:
    """The oldest first."""
    with store.read() as session:
        rows, _ = audit.page(session, EVERYTHING, audit.Wanted(), after=None, limit=99)
    return rows[::-1]


def noted(store: Database) -> list[tuple[str, str | None, str | None]]:
    return [(row.action, row.target, row.project_id) for row in log(store)]


class TestOnTheMachine:
    """Commands that change the database themselves."""

    def test_who_it_was(self, cli: Cli, store: Database, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("LOGNAME", "somebody-else")
        made = cli("keys", "create", "laptop", "--json").json()
        [row] = log(store)
        found = (row.action, row.target, row.key_name, row.role, row.client, row.outcome)
        assert found == ("create_key", made["id"], ME, "operator", "cli", "done")
        assert made["key"] not in str(vars(row))

    def test_a_user_without_a_name(
        self, cli: Cli, store: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(local_database.os, "getuid", lambda: 54321)  # type: ignore[attr-defined]
        cli("keys", "create", "laptop")
        assert [row.key_name for row in log(store)] == ["54321"]

    def test_keys_are_rotated_and_revoked(self, cli: Cli, store: Database) -> None:
        make_project(store, "search")
        with store.write() as session:
            theirs = keys.create(session, "theirs", Grant("search", Role.MEMBER))[0].id
        new = cli("keys", "rotate", theirs, "--json").json()["id"]
        cli("keys", "revoke", new)
        assert noted(store) == [("rotate_key", theirs, "search"), ("revoke_key", new, "search")]

    def test_what_fails_is_not_there(self, cli: Cli, store: Database) -> None:
        assert cli("keys", "revoke", "unknown").status == 2
        assert cli("keys", "rotate", "unknown").status == 2
        assert cli("keys", "create", "x", "--scope", "nothing").status == 2
        assert log(store) == []

    def test_the_key_of_secrets(self, cli: Cli, store: Database) -> None:
        assert cli("secrets", "rotate-key", "--json").json() == {"secrets": 0}
        assert noted(store) == [("rotate_secrets_key", None, None)]

    def test_the_key_that_up_makes(self, home: Path, store: Database) -> None:
        assert local_key.ensure(home, store)
        assert not local_key.ensure(home, store)
        with store.read() as session:
            [row] = keys.list_all(session)
        assert noted(store) == [("create_key", row.id, None)]


class TestThroughTheService:
    def test_each_command_that_changes_something(
        self, cli: Cli, api: str, store: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        project = cli("projects", "create", "search", "--json").json()["id"]
        cli("projects", "set", "search", "--max-gpus", "4")
        ada = cli("--project", "search", "members", "add", "ada", "--json").json()["id"]
        made = cli("keys", "create", "hers", "--project", "search", "--json").json()["id"]
        new = cli("keys", "rotate", "hers", "--project", "search", "--json").json()["id"]
        cli("keys", "revoke", new, "--project", "search")
        cli("--project", "search", "members", "remove", "ada")
        monkeypatch.setattr("sys.stdin", io.StringIO("hf_value\n"))
        cli("--project", "search", "secrets", "set", "hub")
        cli("--project", "search", "secrets", "remove", "hub")
        cli("projects", "archive", "search")
        assert noted(store) == [
            ("create_project", project, project),
            ("change_project", "search", project),
            ("add_member", f"search/{ada}", project),
            ("create_key", f"search/{made}", project),
            ("rotate_key", f"search/{made}", project),
            ("revoke_key", f"search/{new}", project),
            ("remove_member", "search/ada", project),
            ("set_secret", "hub", project),
            ("delete_secret", "hub", project),
            ("change_project", "search", project),
        ]

    def test_what_an_operator_does_in_a_project_is_the_projects(
        self, cli: Cli, http: httpx.Client, store: Database
    ) -> None:
        """Their key belongs to no project, and the request names it in its path alone."""
        project = http.post("/v1/projects", json={"name": "search"}).json()["id"]
        key = http.post("/v1/projects/search/keys", json={"name": "x"}).json()["id"]
        http.delete(f"/v1/projects/search/keys/{key}")
        http.post("/v1/projects/search/members", json={"name": "ada"})
        http.delete("/v1/projects/search/members/ada")
        assert [row.project_id for row in log(store)] == [project] * 5


class TestCommand:
    def test_filters(self, cli: Cli, api: str) -> None:
        ids = [cli("keys", "create", name, "--json").json()["id"] for name in ("a", "b")]
        cli("keys", "revoke", "a")
        assert self.shown(cli, "--action", "create_key") == [
            ("create_key", key) for key in ids[::-1]
        ]
        assert self.shown(cli, "--target", ids[0]) == [
            ("revoke_key", ids[0]),
            ("create_key", ids[0]),
        ]
        assert self.shown(cli, "--since", "2100-01-01T00:00:00Z") == []
        assert self.shown(cli, "--until", "2000-01-01T00:00:00Z") == []

    def test_the_table_has_so_many_rows(self, cli: Cli, api: str) -> None:
        ids = [cli("keys", "create", name, "--json").json()["id"] for name in ("a", "b")]
        out = cli("audit", "--limit", "1").out
        assert out.split()[:6] == ["at", "key_name", "action", "target", "outcome", "client"]
        assert (ids[1] in out, ids[0] in out) == (True, False)

    def test_json_lines_are_all_pages(self, cli: Cli, api: str, store: Database) -> None:
        with store.write() as session:
            for number in range(150):
                local_database.note(session, "revoke_key", f"key-{number}")
        found = cli("audit", "--jsonl").json_lines()
        assert [entry["target"] for entry in found] == [f"key-{n}" for n in range(149, -1, -1)]

    def shown(self, cli: Cli, *options: str) -> list[tuple[Any, Any]]:
        entries = cli("audit", "--jsonl", *options).json_lines()
        return [(entry["action"], entry["target"]) for entry in entries]
