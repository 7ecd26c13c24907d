from pathlib import Path

import pytest
from pydantic import ValidationError

from service.settings import Settings


class TestSettings:
    def test_sqlite_under_home_unless_a_url_is_given(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        monkeypatch.delenv("FINETUNE_DATABASE_URL", raising=False)
        monkeypatch.setenv("FINETUNE_HOME", str(tmp_path))
        assert Settings().sqlalchemy_url == f"sqlite:///{tmp_path}/finetune.db"
        monkeypatch.setenv("FINETUNE_DATABASE_URL", "postgresql://db/x")
        assert Settings().sqlalchemy_url == "postgresql://db/x"

    def test_an_empty_variable_is_none_at_all(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FINETUNE_HUB_TOKEN", "")
        assert Settings().hub_token is None

    def test_roots_are_split_and_resolved(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to(tmp_path / "real")
        monkeypatch.setenv("FINETUNE_DATA_ROOTS", f"{tmp_path}/link:{tmp_path}/other")
        assert Settings().data_roots == [tmp_path / "real", tmp_path / "other"]

    @pytest.mark.parametrize(
        ("given", "found"),
        [
            ('["/a", "/b:c"]', ["/a", "/b:c"]),
            (' [ "/a" , "" ] ', ["/a"]),
            ("[]", []),
            ("/a:/b", ["/a", "/b"]),
        ],
    )
    @pytest.mark.parametrize("name", ["data_roots", "model_roots", "sandbox_read"])
    def test_roots_may_be_a_json_list(
        self, monkeypatch: pytest.MonkeyPatch, name: str, given: str, found: list[str]
    ) -> None:
        monkeypatch.setenv(f"FINETUNE_{name.upper()}", given)
        assert getattr(Settings(), name) == [Path(path) for path in found]

    @pytest.mark.parametrize(
        ("given", "found"),
        [
            ('["a.org", " b.org ", ""]', ["a.org", "b.org"]),
            ("a.org, b.org,", ["a.org", "b.org"]),
            ("[::1]", ["[::1]"]),
        ],
    )
    @pytest.mark.parametrize(
        "name", ["allowed_hosts", "cors_origins", "trusted_proxies", "stage_env"]
    )
    def test_names_may_be_a_json_list(
        self, monkeypatch: pytest.MonkeyPatch, name: str, given: str, found: list[str]
    ) -> None:
        monkeypatch.setenv(f"FINETUNE_{name.upper()}", given)
        assert getattr(Settings(), name) == found

    @pytest.mark.parametrize("given", ['["/a"', '["/a", 1]', '["/a", "/b",]', '["/a"]:/b'])
    @pytest.mark.parametrize("name", ["model_roots", "allowed_hosts"])
    def test_a_damaged_json_list_is_neither_folder_nor_name(
        self, monkeypatch: pytest.MonkeyPatch, name: str, given: str
    ) -> None:
        monkeypatch.setenv(f"FINETUNE_{name.upper()}", given)
        with pytest.raises(ValidationError, match=name):
            Settings()

    @pytest.mark.parametrize("name", ["FINETUNE_DATA_ROOTS", "FINETUNE_MODEL_ROOTS"])
    @pytest.mark.parametrize("root", ["", "home", "/"])
    def test_a_root_does_not_contain_the_home(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, name: str, root: str
    ) -> None:
        """Specs could name the database, and their stages would see it."""
        monkeypatch.setenv("FINETUNE_HOME", str(tmp_path / "home"))
        monkeypatch.setenv(name, f"{tmp_path / 'data'}:{tmp_path / root}")
        with pytest.raises(ValidationError, match="which contains FINETUNE_HOME"):
            Settings()

    def test_secrets_do_not_show(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FINETUNE_HUB_TOKEN", "hf_secret")
        monkeypatch.setenv("FINETUNE_REDIS_URL", "redis://:password@host/0")
        shown = repr(Settings())
        assert "hf_secret" not in shown
        assert "password" not in shown

    def test_secrets_may_come_from_files(
        self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
    ) -> None:
        file = tmp_path / "token"
        file.write_text("hf_secret\n")
        monkeypatch.delenv("FINETUNE_HUB_TOKEN", raising=False)
        monkeypatch.setenv("FINETUNE_HUB_TOKEN_FILE", str(file))
        token = Settings().hub_token
        assert token is not None
        assert token.get_secret_value() == "hf_secret"
        monkeypatch.setenv("FINETUNE_HUB_TOKEN", "hf_other")
        with pytest.raises(ValueError, match="FINETUNE_HUB_TOKEN or FINETUNE_HUB_TOKEN_FILE"):
            Settings()
        monkeypatch.delenv("FINETUNE_HUB_TOKEN")
        file.write_text("\n")
        with pytest.raises(ValueError, match=r"FINETUNE_HUB_TOKEN_FILE: .* is empty"):
            Settings()
        file.unlink()
        with pytest.raises(ValueError, match=r"cannot read .*: No such file"):
            Settings()

    def test_nonsense_is_refused_at_the_start(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("FINETUNE_LEASE_SECONDS", "0")
        with pytest.raises(ValidationError, match="lease_seconds"):
            Settings()

    @pytest.mark.parametrize(("beat", "kill", "lease"), [(10, 60, 60), (45, 45, 60), (10, 90, 60)])
    def test_a_stage_must_be_ended_before_its_lease_is(
        self, beat: float, kill: float, lease: float
    ) -> None:
        with pytest.raises(ValidationError, match="FINETUNE_KILL_SECONDS"):
            Settings(beat_seconds=beat, kill_seconds=kill, lease_seconds=lease)
