"""What a worker checks of the database's secrets before it takes the first message."""

from pathlib import Path

import pytest

from service.settings import Settings
from service.store.database import Database
from service.store.projects import secrets
from service.store.tables.projects import DEFAULT_PROJECT
from service.system.secret_box import SecretBox
from worker.__main__ import _require_key


class TestRequireKey:
    def test_the_secret_that_was_sealed_last_decides(
        self, database: Database, database_url: str, tmp_path: Path
    ) -> None:
        ours, theirs = tmp_path / "ours.key", tmp_path / "theirs.key"
        settings = Settings(home=tmp_path, database_url=database_url, secrets_key_file=ours)
        _require_key(settings)
        for name, file in (("old", tmp_path / "lost.key"), ("new", theirs)):
            sealed = SecretBox(file).seal(DEFAULT_PROJECT, name, "v")
            with database.write() as session:
                secrets.put(session, DEFAULT_PROJECT, name, sealed.__str__)
        _require_key(settings)  # there is no file yet
        SecretBox(ours).add_key()
        with pytest.raises(SystemExit, match=r"^\S+ours\.key has the key [0-9a-f]{8}, but "):
            _require_key(settings)
        ours.write_text(theirs.read_text())
        _require_key(settings)

    def test_a_database_that_is_away_is_waited_for(self, tmp_path: Path) -> None:
        SecretBox(tmp_path / "secrets.key").add_key()
        _require_key(Settings(home=tmp_path, database_url="postgresql://127.0.0.1:1/none"))
