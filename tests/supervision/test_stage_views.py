"""The views that the supervisor makes for stages."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from tests.stages.support import REQUEST
from worker.sandbox.view import View
from worker.supervision import stage_views


def view_of(home: Path, stage: Stage, private: Path | None = None, **more: Any) -> View:
    workspace = home / "jobs" / "job-1"
    paths = {"workspace": workspace, "attempt_dir": workspace / "attempts" / "1"}
    paths["cache_dir"] = home / "cache"
    request = StageRequest.model_validate({**REQUEST, **paths, "stage": stage, **more})
    environment = {"HF_HOME": str(home / "hf")}
    return stage_views.of_stage(Settings(home=home), request, environment, private=private)


@pytest.mark.parametrize("stage", Stage)
@pytest.mark.parametrize("project", ["default", "other"])
def test_what_a_stage_can_write_is_guarded_in_every_view(
    tmp_path: Path, stage: Stage, project: str
) -> None:
    private = tmp_path / "private"
    view = view_of(tmp_path, stage, private=private, project_id=project)
    shared = {path for path in view.write if path.is_relative_to(tmp_path) and path.is_dir()}
    open_to_others = shared - {private}
    assert open_to_others
    assert [path for path in open_to_others if not _is_below(path, view.guarded)] == []


def _is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def test_a_link_in_place_of_a_cache_does_not_end_the_worker(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "xet").symlink_to(tmp_path / "missing")
    view = view_of(tmp_path, Stage.PUBLISH)
    assert view.trusted(tmp_path / "hf" / "xet") == tmp_path / "hf"
