"""What a worker checks of the database's secrets before it takes the first message."""

import os
import subprocess
import sys
from functools import partial
from pathlib import Path

import pytest

from service.settings import Settings
from service.store.database import Database
from service.store.projects import secrets
from service.store.tables.projects import DEFAULT_PROJECT
from service.system.secret_box import SecretBox
from tests.support.store.databases import on_sqlite
from worker.__main__ import _require_key


def put(database: Database, name: str, key_file: Path) -> None:
    sealed = SecretBox(key_file).seal(DEFAULT_PROJECT, name, "v")
    with database.write() as session:
        secrets.put(session, DEFAULT_PROJECT, name, partial(str, sealed))


class TestKeyFile:
    def test_the_secret_that_was_sealed_last_decides(
        self, database: Database, database_url: str, tmp_path: Path
    ) -> None:
        ours, theirs = tmp_path / "ours.key", tmp_path / "theirs.key"
        settings = Settings(home=tmp_path, database_url=database_url, secrets_key_file=ours)
        _require_key(settings)
        put(database, "old", tmp_path / "lost.key")
        put(database, "new", theirs)
        _require_key(settings)  # there is no file yet
        SecretBox(ours).add_key()
        with pytest.raises(SystemExit, match=r"^The key in \S+ours\.key has the fingerprint "):
            _require_key(settings)
        ours.write_text(theirs.read_text())
        _require_key(settings)
        ours.unlink()
        ours.mkdir()
        with pytest.raises(SystemExit, match=r"KEY_FILE cannot be read: .*ours\.key"):
            _require_key(settings)

    def test_a_database_that_is_away_is_waited_for(self, tmp_path: Path) -> None:
        SecretBox(tmp_path / "secrets.key").add_key()
        _require_key(Settings(home=tmp_path, database_url="postgresql://127.0.0.1:1/none"))

    @pytest.mark.usefixtures("processes")
    @on_sqlite
    def test_a_worker_with_another_key_does_not_start(
        self, database: Database, database_url: str, tmp_path: Path
    ) -> None:
        put(database, "hub", tmp_path / "theirs.key")
        SecretBox(tmp_path / "ours.key").add_key()
        own = {
            "FINETUNE_HOME": str(tmp_path / "home"),
            "FINETUNE_DATABASE_URL": database_url,
            "FINETUNE_REDIS_URL": "redis://127.0.0.1:1",
            "FINETUNE_SECRETS_KEY_FILE": str(tmp_path / "ours.key"),
        }
        command = [sys.executable, "-m", "worker"]
        done = subprocess.run(
            command, env={**os.environ, **own}, capture_output=True, text=True, timeout=60
        )
        assert done.returncode == 1
        assert done.stderr.startswith(f"The key in {tmp_path}/ours.key has the fingerprint ")
