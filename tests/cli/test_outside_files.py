"""A spec of a stranger does not choose what is uploaded from this machine."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.cli.conftest import Cli
from tests.cli.specs import ROWS, write_spec


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The spec's folder; a file of the user is next to it."""
    (tmp_path / "secret.jsonl").write_text(ROWS)
    folder = tmp_path / "theirs"
    folder.mkdir()
    (folder / "link.jsonl").symlink_to(tmp_path / "secret.jsonl")
    (folder / "up").symlink_to(tmp_path)
    (folder / "inner").mkdir()
    (folder / "inner" / "rows.jsonl").write_text(ROWS)
    (folder / "inside.jsonl").symlink_to("inner/rows.jsonl")
    return folder


OUTSIDE = ["../secret.jsonl", "./link.jsonl", "./up/secret.jsonl", "./inner/../../secret.jsonl"]


def spec_with(folder: Path, name: str) -> str:
    dataset: dict[str, Any] = {"source": "upload", "train": name}
    return str(write_spec(folder, dataset=dataset))


@pytest.mark.parametrize("command", ["submit", "validate"])
@pytest.mark.parametrize("name", OUTSIDE)
def test_is_refused_with_its_path(
    cli: Cli, http: httpx.Client, folder: Path, command: str, name: str
) -> None:
    outcome = cli(command, spec_with(folder, name))
    assert outcome.status == 2
    assert f"{folder.parent / 'secret.jsonl'}, outside the spec's folder" in outcome.err
    assert "add --allow-outside" in outcome.err
    assert http.get("/v1/files").json()["data"] == []
    assert http.get("/v1/jobs").json()["data"] == []


@pytest.mark.parametrize("name", OUTSIDE)
def test_is_uploaded_when_asked(cli: Cli, http: httpx.Client, folder: Path, name: str) -> None:
    outcome = cli("submit", spec_with(folder, name), "--allow-outside")
    assert outcome.status == 0
    (file,) = http.get("/v1/files").json()["data"]
    assert file["filename"] == Path(name).name


def test_a_link_within_the_folder_is_fine(cli: Cli, http: httpx.Client, folder: Path) -> None:
    assert cli("submit", spec_with(folder, "./inside.jsonl")).status == 0
    assert len(http.get("/v1/files").json()["data"]) == 1
