from pathlib import Path

import pytest

from service.contract.states import Stage
from service.settings import Settings
from worker.stage_request import stage_environment


class TestStageEnvironment:
    @pytest.fixture
    def settings(self, tmp_path: Path) -> Settings:
        return Settings(home=tmp_path)

    def test_downloads_lie_with_our_caches(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.delenv("HF_HOME", raising=False)
        home = stage_environment(settings, Stage.PREPARE)["HF_HOME"]
        assert home == str(settings.cache_dir / "huggingface")

    def test_unless_the_operator_keeps_one_for_all(
        self, settings: Settings, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setenv("HF_HOME", "elsewhere")
        assert stage_environment(settings, Stage.PREPARE)["HF_HOME"] == "elsewhere"
