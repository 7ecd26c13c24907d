import re
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

import pytest
import typer
from starlette.testclient import TestClient

from service.cli.app import app
from tests.cli.conftest import Cli

ROOT: Final = Path(__file__).parents[2]
COMMAND: Final = re.compile(r"`finetune ([a-z][a-z-]*)(?: ([a-z][a-z-]*))?")


class TestMain:
    @pytest.mark.parametrize("option", ["--version", "-V"])
    def test_the_version(self, cli: Cli, option: str) -> None:
        outcome = cli(option)
        assert (outcome.status, outcome.out) == (0, f"finetune {version('finetune-service')}\n")

    def test_a_wrong_setting_is_named_without_its_value(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_PORT", "secret-eighty")
        outcome = cli("migrate")
        assert outcome.status == 2
        assert "FINETUNE_PORT: Input should be a valid integer" in outcome.err
        assert "secret-eighty" not in outcome.err

    def test_an_unreachable_database_is_status_3(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATABASE_URL", "postgresql://me:hidden@127.0.0.1:9/jobs")
        outcome = cli("migrate")
        assert outcome.status == 3
        assert "the database postgresql://***@127.0.0.1:9/jobs cannot be used" in outcome.err
        assert outcome.err.endswith("start its server, or correct host and port\n")
        assert "hidden" not in outcome.err

    def test_a_file_that_is_not_a_database_is_status_3(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "notes.db").write_text("no database at all\n" * 100)
        monkeypatch.setenv("FINETUNE_DATABASE_URL", f"sqlite:///{tmp_path}/notes.db")
        outcome = cli("migrate")
        assert outcome.status == 3
        assert outcome.err == (
            f"finetune: the database sqlite:///{tmp_path}/notes.db cannot be used (file is not a "
            "database): the file holds something else: move it away, or name another\n"
        )

    @pytest.mark.parametrize("command", ["api", "reconciler"])
    def test_a_database_that_was_not_migrated_is_refused(
        self, cli: Cli, command: str, monkeypatch: pytest.MonkeyPatch, tmp_path: object
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATABASE_URL", f"sqlite:///{tmp_path}/empty.db")
        outcome = cli(command)
        assert outcome.status == 2
        assert "`finetune migrate`" in outcome.err

    def test_migrate_brings_an_empty_database_up(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, tmp_path: object
    ) -> None:
        monkeypatch.setenv("FINETUNE_DATABASE_URL", f"sqlite:///{tmp_path}/empty.db")
        assert cli("migrate").status == 0
        assert cli("keys", "list", "--json").json() == {"data": []}


class TestApi:
    @pytest.fixture
    def served(self, home: object, monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
        """What uvicorn is given to serve."""
        given: dict[str, Any] = {}

        def run(app: Any, **options: Any) -> None:
            given.update(options, app=app)

        monkeypatch.setattr("uvicorn.run", run)
        monkeypatch.setattr("service.api.app.logging.configure", lambda _: None)
        return given

    def test_it_answers_to_the_host_that_it_was_started_with(
        self, cli: Cli, served: dict[str, Any]
    ) -> None:
        assert cli("api", "--host", "GPU-box.example", "--port", "8123").status == 0
        assert (served["host"], served["port"]) == ("GPU-box.example", 8123)
        client = TestClient(served["app"](), base_url="http://gpu-box.example:8123")
        assert client.get("/health/live").status_code == 200
        other = client.get("/health/live", headers={"Host": "other.example"})
        assert (other.status_code, other.json()["code"]) == (421, "unknown_host")

    def test_without_options_the_settings_count(
        self, cli: Cli, served: dict[str, Any], monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_HOST", "0.0.0.0")
        monkeypatch.setenv("FINETUNE_PORT", "8200")
        assert cli("api").status == 0
        assert (served["host"], served["port"]) == ("0.0.0.0", 8200)


def test_every_command_that_a_message_names_exists() -> None:
    commands: dict[str, Any] = vars(typer.main.get_command(app))["commands"]
    named = {
        match
        for folder in ("service", "worker")
        for path in (ROOT / folder).rglob("*.py")
        for match in COMMAND.findall(path.read_text(encoding="utf-8"))
    }
    assert len(named) > 30
    for name, inner in named:
        assert name in commands
        group = vars(commands[name]).get("commands")
        assert group is None or not inner or inner in group, (name, inner)
