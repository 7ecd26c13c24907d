"""The Celery application of a worker."""

from pathlib import Path

import pytest

from worker.app import app


class TestLoader:
    def test_imports_nothing_from_the_current_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """Celery's own would, and with it all that a module which it loads imports."""
        (tmp_path / "only_in_this_folder.py").touch()
        monkeypatch.chdir(tmp_path)
        with pytest.raises(ModuleNotFoundError):
            app.loader.import_from_cwd("only_in_this_folder")
        assert app.loader.import_from_cwd("worker.run").__name__ == "worker.run"
