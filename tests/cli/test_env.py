"""`finetune env` shows what helps, and no secret."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.cli.client import ClientSettings
from service.cli.env import shown
from service.settings import Settings
from tests.cli.conftest import Cli

SECRET = "s3cr3tvalue"


def _holds_secret(annotation: Any) -> bool:
    return SecretStr in getattr(annotation, "__args__", (annotation,))


def secret_settings() -> dict[str, str]:
    """A secret in every SecretStr, and in every address."""
    addresses = {
        "DATABASE_URL": f"postgresql://joe:{SECRET}@db.local:5432/finetune?password={SECRET}",
        "REDIS_URL": f"rediss://:{SECRET}@broker.local:6379/0",
        "MLFLOW_URI": f"http://joe:{SECRET}@mlflow.local:5000/x?token={SECRET}#{SECRET}",
        "MLFLOW_PUBLIC_URI": f"https://mlflow.local/{SECRET}",
        "PUBLIC_URL": f"https://joe:{SECRET}@finetune.local",
        "HUB_ENDPOINT": f"https://{SECRET}@hub.local",
        "URL": f"http://joe:{SECRET}@127.0.0.1:9",
    }
    fields = {**Settings.model_fields, **ClientSettings.model_fields}
    secrets = {
        name.upper(): SECRET for name, field in fields.items() if _holds_secret(field.annotation)
    }
    assert {"DATABASE_URL", "REDIS_URL", "HUB_TOKEN", "API_KEY"} <= secrets.keys()
    return {**secrets, **addresses}


class TestEnv:
    @pytest.fixture
    def secrets(self, home: object, monkeypatch: pytest.MonkeyPatch) -> dict[str, str]:
        given = secret_settings()
        for name, value in given.items():
            monkeypatch.setenv(f"FINETUNE_{name}", value)
        monkeypatch.setenv("HF_TOKEN", SECRET)
        monkeypatch.setenv("HTTPS_PROXY", f"http://joe:{SECRET}@proxy.local")
        return given

    @pytest.mark.parametrize("options", [(), ("--json",)])
    def test_no_secret_is_shown(
        self, cli: Cli, secrets: dict[str, str], options: tuple[str, ...]
    ) -> None:
        outcome = cli("env", *options)
        assert outcome.status == 0
        assert SECRET not in outcome.out + outcome.err
        assert "joe" not in outcome.out + outcome.err
        for name in secrets:
            assert f"FINETUNE_{name}" in outcome.out
        assert "HF_TOKEN" in outcome.out
        assert "HTTPS_PROXY" in outcome.out

    def test_what_is_shown_of_each_setting(self, cli: Cli, secrets: dict[str, str]) -> None:
        found = cli("env", "--json").json()
        settings = found["settings"]
        assert settings["FINETUNE_HUB_TOKEN"] == settings["FINETUNE_DATABASE_URL"] == "set"
        assert settings["FINETUNE_MLFLOW_URI"] == "http://mlflow.local:5000"
        assert settings["FINETUNE_MLFLOW_PUBLIC_URI"] == "https://mlflow.local"
        assert settings["FINETUNE_URL"] == "http://127.0.0.1:9"
        assert found["database"] == "postgresql"
        assert found["service"] == {
            "url": "http://127.0.0.1:9",
            "reachable": False,
            "problem": "no answer",
        }

    def test_an_invalid_setting_does_not_end_it_and_is_not_shown(
        self, cli: Cli, api: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("FINETUNE_PORT", SECRET)
        outcome = cli("env")
        assert outcome.status == 0
        assert "- FINETUNE_PORT: invalid" in outcome.out
        assert SECRET not in outcome.out

    @pytest.mark.parametrize(
        ("url", "problem"),
        [
            (f"http://joe:{SECRET}@127.0.0.1:99999", "must be http://HOST:PORT"),
            (f"joe:{SECRET}@127.0.0.1:8000", "must be http://HOST:PORT"),
        ],
    )
    def test_an_address_that_cannot_be_used(
        self, cli: Cli, monkeypatch: pytest.MonkeyPatch, url: str, problem: str
    ) -> None:
        monkeypatch.setenv("FINETUNE_URL", url)
        outcome = cli("env")
        assert outcome.status == 0
        assert problem in outcome.out.splitlines()[-1]
        assert SECRET not in outcome.out

    def test_versions_devices_and_the_service(self, cli: Cli, api: str) -> None:
        outcome = cli("env")
        lines = outcome.out.splitlines()
        assert [line for line in lines if line.startswith("### ")] == [
            "### Versions",
            "### Devices",
            "### Settings",
            "### Service",
        ]
        assert "finetune-service 0.1.0, torch 2." in outcome.out
        assert "CPU cores" in outcome.out
        assert "- database: sqlite" in lines
        assert f"- {api} answers" in lines


class TestShown:
    def test_a_home_folder_has_no_name(self) -> None:
        assert shown(str(Path.home() / "lib/tcmalloc.so")) == "~/lib/tcmalloc.so"

    @pytest.mark.parametrize(
        ("url", "text"),
        [
            ("http://host:5000/path", "http://host:5000"),
            ("http://u:p@host", "http://host"),
            ("http://u:a@b@host:1/x", "http://host:1"),
            ("http://[::1]:8000/x", "http://[::1]:8000"),
            ("postgresql://u:p/a@s@host/db", "set"),
            ("postgresql://u:p?a@host/db", "set"),
            ("http://host/?mail=a@secret", "set"),
            ("u:p@host", "set"),
            ("sqlite:////srv/finetune.db", "sqlite://"),
        ],
    )
    def test_an_address_is_cut_to_its_host(self, url: str, text: str) -> None:
        assert shown(url) == text
