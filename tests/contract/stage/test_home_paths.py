"""What lies below the home is stored as a key, and found in the home that reads it."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from service.contract.stage import home_paths
from service.contract.stage.stages import PrepareResult
from service.settings import Settings

STORED: dict[str, Any] = {
    "prepared_dir": f"cache/prepared/{'a' * 64}",
    "model_dir": "jobs/job-2/attempts/1/base_model",
    "tokenizer_dir": "jobs/job-2/attempts/1/tokenizer",
    "model_revision": None,
    "dataset_revision": None,
    "data_fingerprint": "a" * 64,
    "splits": {},
    "base_job": {
        "job": "job-1",
        "step": 3,
        "folder": "jobs/job-1/attempts/2/checkpoints/3",
        "finished": "jobs/job-1/attempts/2/output",
        "sha256": "b" * 64,
        "name": "org/model",
        "revision": None,
    },
    "resume_source": {
        "job": "job-1",
        "step": 3,
        "folder": "jobs/job-2/attempts/1/resume_from/3",
        "sha256": "b" * 64,
        "data_fingerprint": "a" * 64,
        "model_revision": None,
    },
}


def read(stored: dict[str, Any], home: Path) -> PrepareResult:
    result = PrepareResult.of_results({"prepare": stored}, home)
    assert result is not None
    return result


def paths(result: PrepareResult) -> list[Path]:
    assert result.base_job is not None
    assert result.base_job.finished is not None
    assert result.resume_source is not None
    others = (result.base_job.folder, result.base_job.finished, result.resume_source.folder)
    return [*result.folders().values(), *others]


class TestStoredForm:
    def test_each_home_finds_its_own_files(self) -> None:
        for home in (Path("/one/home"), Path("/deeper/in/another")):
            result = read(STORED, home)
            assert all(path.is_relative_to(home) for path in paths(result))
            assert result.model_dir == home / STORED["model_dir"]
            stored = result.stored(home)
            assert {name: stored[name] for name in STORED} == STORED

    def test_a_stage_is_given_paths_and_reports_them(self) -> None:
        result = read(STORED, Path("/one/home"))
        given = result.model_dump_json()
        assert PrepareResult.model_validate_json(given) == result
        assert f'"/one/home/{STORED["model_dir"]}"' in given

    def test_a_home_reached_through_a_link_or_from_another_folder(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        (tmp_path / "home").mkdir()
        (tmp_path / "link").symlink_to("home")
        monkeypatch.chdir(tmp_path)
        homes = {Settings(home=each).home for each in (tmp_path / "link", Path("home"))}
        assert homes == {(tmp_path / "home").resolve()}

    @pytest.mark.parametrize("path", ["/one/home/x", "/etc", "../other/x", "cache/../../other/x"])
    def test_a_path_of_another_home_leads_nowhere(self, tmp_path: Path, path: str) -> None:
        result = read({**STORED, "model_dir": path}, tmp_path)
        assert result.model_dir.is_relative_to(tmp_path)
        assert ".." not in result.model_dir.parts
        assert not home_paths.is_there(result.model_dir, tmp_path)

    @pytest.mark.parametrize("path", ["/other/x", "/one/home/../other", "relative"])
    def test_what_is_outside_of_the_home_is_not_stored(self, path: str) -> None:
        home = Path("/one/home")
        result = read(STORED, home).model_copy(update={"model_dir": Path(path)})
        with pytest.raises(ValueError, match="is not below /one/home"):
            result.stored(home)


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """With a file of a cache, and a job's folder with a link to it."""
    blob = tmp_path / "home/cache/hub/blob"
    blob.parent.mkdir(parents=True)
    blob.write_bytes(b"weights")
    linked(tmp_path / "home", blob)
    return tmp_path / "home"


def linked(home: Path, target: Path) -> Path:
    model: Path = home / STORED["model_dir"]
    model.mkdir(parents=True, exist_ok=True)
    home_paths.link(model / "model.safetensors", target.resolve(), home)
    return model


class TestLinks:
    def test_a_moved_home_and_a_copy_have_their_own(self, home: Path, tmp_path: Path) -> None:
        copy, moved = tmp_path / "copy", tmp_path / "much" / "deeper"
        shutil.copytree(home, copy, symlinks=True)
        (copy / "cache/hub/blob").write_bytes(b"the copy's")
        moved.parent.mkdir()
        home.rename(moved)
        for place, content in ((copy, b"the copy's"), (moved, b"weights")):
            model = place / STORED["model_dir"]
            assert home_paths.is_there(model, place, [])
            assert (model / "model.safetensors").read_bytes() == content

    def test_a_link_into_the_original_is_not_used(self, home: Path, tmp_path: Path) -> None:
        copy = tmp_path / "copy"
        shutil.copytree(home, copy, symlinks=True)
        link = copy / STORED["model_dir"] / "model.safetensors"
        link.unlink()
        link.symlink_to(home / "cache/hub/blob")
        assert not home_paths.is_there(link.parent, copy, [])
        assert home_paths.is_there(home / STORED["model_dir"], home, [])

    def test_a_link_to_the_operators_models(self, home: Path, tmp_path: Path) -> None:
        """They stay where they are when the home moves; the API may not see them."""
        models = tmp_path / "models"
        models.mkdir()
        (models / "weights").write_bytes(b"weights")
        model = linked(home, models / "weights")
        assert (model / "model.safetensors").readlink() == models / "weights"
        assert home_paths.is_there(model, home, [models])
        assert not home_paths.is_there(model, home, [])
        (models / "weights").unlink()
        assert not home_paths.is_there(model, home, [models])
        assert home_paths.is_there(model, home)

    def test_a_file_that_was_removed(self, home: Path) -> None:
        (home / "cache/hub/blob").unlink()
        assert not home_paths.is_there(home / STORED["model_dir"], home)

    @pytest.mark.parametrize("folder", ["cache", "cache/hub", "jobs"])
    def test_a_folder_on_another_disk(self, home: Path, tmp_path: Path, folder: str) -> None:
        (home / folder).rename(tmp_path / "disk")
        (home / folder).symlink_to(tmp_path / "disk")
        model = linked(home, home / "cache/hub/blob")
        assert (model / "model.safetensors").read_bytes() == b"weights"
        assert home_paths.is_there(model, home, [])
