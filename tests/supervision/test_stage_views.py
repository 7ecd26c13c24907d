"""The views that the supervisor makes for stages."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from service.settings import Settings
from tests.stages.support import REQUEST
from worker.processes.stage_environment import stage_environment
from worker.sandbox.view import View
from worker.supervision import stage_views

pytestmark = pytest.mark.usefixtures("processes")


def view_of(
    home: Path,
    stage: Stage,
    private: Path | None = None,
    environment: Mapping[str, str] | None = None,
    **more: Any,
) -> View:
    workspace = home / "jobs" / "job-1"
    paths = {"workspace": workspace, "attempt_dir": workspace / "attempts" / "1"}
    paths["cache_dir"] = home / "cache"
    request = StageRequest.model_validate({**REQUEST, **paths, "stage": stage, **more})
    environment = environment or {"HF_HOME": str(home / "hf")}
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


@pytest.mark.parametrize("stage", Stage)
def test_what_a_project_leaves_for_later_jobs_no_other_project_sees(
    tmp_path: Path, stage: Stage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """But for the lock on the CPU, which holds nothing."""
    monkeypatch.delenv("HF_HOME", raising=False)
    seen = {}
    for project in ("default", "a", "b"):
        environment = stage_environment(Settings(home=tmp_path), stage, project_id=project)
        view = view_of(tmp_path, stage, project_id=project, environment=environment)
        below = {path for path in (*view.read, *view.write) if path.is_relative_to(tmp_path)}
        seen[project] = {path for path in below if path.is_relative_to(tmp_path / "cache")}
        seen[project] -= {tmp_path / "cache" / "devices" / "cpu.lock"}
        assert seen[project]
    own = {name: tmp_path / "cache" / "projects" / name for name in ("a", "b")}
    for project, folder in own.items():
        assert [path for path in seen[project] if not path.is_relative_to(folder)] == []
    assert [p for p in seen["default"] if p.is_relative_to(tmp_path / "cache" / "projects")] == []
    assert tmp_path / "cache" not in seen["default"]


def _is_below(path: Path, folders: tuple[Path, ...]) -> bool:
    return any(path.is_relative_to(folder) for folder in folders)


def test_a_link_in_place_of_a_cache_does_not_end_the_worker(tmp_path: Path) -> None:
    (tmp_path / "hf").mkdir()
    (tmp_path / "hf" / "xet").symlink_to(tmp_path / "missing")
    view = view_of(tmp_path, Stage.PUBLISH)
    assert view.trusted(tmp_path / "hf" / "xet") == tmp_path / "hf"
