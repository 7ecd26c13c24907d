"""worker.stages.reference: which jobs read the values of others."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.events import Notice
from tests.tasks.preference.support import job
from tests.tasks.stages import StagedJob
from worker.training.fast_paths import FastPaths


def made(folder: Path, **task: Any) -> StagedJob:
    folder.mkdir(exist_ok=True)
    return job(folder, task, per_device_eval_batch_size=2, max_steps=1)


class TestKey:
    @pytest.mark.parametrize(
        ("name", "reused"), [("lean_layers", False), ("compiled_layers", True)]
    )
    def test_has_the_paths_that_were_chosen_with_the_model(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, reused: bool
    ) -> None:
        """A resumed training keeps the paths it began with; compiled layers only train."""
        staged = made(tmp_path)
        staged.train()
        monkeypatch.setattr(
            FastPaths, "of", lambda _recorded, ranks: FastPaths(ranks, {name: False})
        )
        _, recorder = staged.train(attempt=3)
        found = any("Reusing the reference" in event.message for event in recorder.of(Notice))
        assert found is reused
