"""`finetune secrets`: the value comes from the prompt or a pipe, and is never shown."""

import io
from pathlib import Path

import pytest
import typer

from service.cli.terminal.exit_codes import USAGE
from service.settings import get_settings
from service.store.database import Database
from service.store.projects import secrets
from service.store.scope import Scope
from service.system.secret_box import SecretBox
from tests.cli.conftest import Cli


class _Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def opened(store: Database, name: str, project: str = "default") -> str:
    with store.read() as session:
        sealed = secrets.sealed(session, Scope(project), name)
    assert sealed is not None
    return SecretBox(get_settings().secrets_file).open(project, name, sealed)


def pipe(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(text))


class TestSet:
    @pytest.mark.parametrize("text", ["hf_value\n", "hf_value\r\n", "hf_value", "hf_value\nmore\n"])
    def test_through_a_pipe(
        self, cli: Cli, api: str, store: Database, monkeypatch: pytest.MonkeyPatch, text: str
    ) -> None:
        pipe(monkeypatch, text)
        outcome = cli("secrets", "set", "hub")
        assert (outcome.status, outcome.out) == (0, "hub is set\n")
        assert "hf_value" not in outcome.out + outcome.err
        assert opened(store, "hub") == "hf_value"

    def test_at_the_prompt_without_an_echo(
        self, cli: Cli, api: str, store: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        asked: list[tuple[str, bool]] = []

        def prompt(text: str, *, hide_input: bool) -> str:
            asked.append((text, hide_input))
            return "typed"

        monkeypatch.setattr("sys.stdin", _Terminal())
        monkeypatch.setattr(typer, "prompt", prompt)
        made = cli("secrets", "set", "hub", "--json").json()
        assert asked == [("Value", True)]
        assert (made["name"], made["project"], "value" in made) == ("hub", "default", False)
        assert opened(store, "hub") == "typed"

    @pytest.mark.parametrize(
        ("name", "text", "words"),
        [
            ("hub", "\n", "no value was given"),
            ("hub", "", "no value was given"),
            ("Hub!", "x\n", "path.name"),
            ("hub", "\x07bell\n", "value"),
        ],
    )
    def test_what_is_refused(
        self, cli: Cli, api: str, monkeypatch: pytest.MonkeyPatch, name: str, text: str, words: str
    ) -> None:
        pipe(monkeypatch, text)
        outcome = cli("secrets", "set", name)
        assert (outcome.status, outcome.out) == (USAGE, "")
        assert words in outcome.err
        assert "bell" not in outcome.err
        assert cli("secrets", "list", "--json").json() == {"data": []}


class TestListAndRemove:
    def test_of_the_project_that_is_chosen(
        self, cli: Cli, api: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        cli("projects", "create", "search")
        for options in ((), ("--project", "search")):
            pipe(monkeypatch, "hf_value")
            cli(*options, "secrets", "set", "hub")
        [listed] = cli("--project", "search", "secrets", "list", "--json").json()["data"]
        assert sorted(listed) == ["created_at", "name", "project", "updated_at"]
        table = cli("secrets", "list").out
        assert table.split()[:4] == ["name", "project", "created_at", "updated_at"]
        assert "hf_value" not in table
        removed = cli("--project", "search", "secrets", "remove", "hub")
        assert (removed.status, removed.out) == (0, "hub is deleted\n")
        assert cli("--project", "search", "secrets", "list", "--json").json() == {"data": []}
        assert len(cli("secrets", "list", "--json").json()["data"]) == 1

    def test_one_that_does_not_exist(self, cli: Cli, api: str) -> None:
        outcome = cli("secrets", "remove", "hub")
        assert outcome.status == USAGE
        assert "no secret 'hub'" in outcome.err


class TestRotateKey:
    def test_secrets_stay_and_only_the_new_key_opens_them(
        self, cli: Cli, api: str, store: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        for name in ("hub", "bucket"):
            pipe(monkeypatch, f"value of {name}")
            cli("secrets", "set", name)
        file: Path = get_settings().secrets_file
        old = file.read_text()
        outcome = cli("secrets", "rotate-key")
        assert outcome.out == "2 secrets are encrypted with a new key\n"
        assert (old in file.read_text(), len(file.read_text().split())) == (False, 1)
        assert file.stat().st_mode & 0o777 == 0o600
        assert [opened(store, name) for name in ("hub", "bucket")] == [
            "value of hub",
            "value of bucket",
        ]

    def test_a_lost_key_changes_nothing(
        self, cli: Cli, api: str, store: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        pipe(monkeypatch, "hf_value")
        cli("secrets", "set", "hub")
        file = get_settings().secrets_file
        kept = file.read_text()
        file.unlink()
        outcome = cli("secrets", "rotate-key")
        assert outcome.status == USAGE
        assert "was not sealed with a key of FINETUNE_SECRETS_KEY_FILE" in outcome.err
        file.write_text(kept)
        assert opened(store, "hub") == "hf_value"
