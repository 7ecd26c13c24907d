"""The pages that `make docs` writes are what the code says."""

from pathlib import Path

import pytest

from scripts.reference import commands, routes, settings
from scripts.reference.__main__ import PAGES, write
from service.settings import Settings
from tests.docs.pages import ROOT
from tests.support.openapi import document


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("reference")
    write(made)
    return made


@pytest.mark.parametrize("name", PAGES)
def test_a_page_is_what_the_code_says(name: str, folder: Path) -> None:
    """`make docs` writes it anew."""
    made = (folder / name).read_text(encoding="utf-8")
    assert (ROOT / "docs" / name).read_text(encoding="utf-8") == made


def test_each_setting_has_a_meaning() -> None:
    rows = [line.split(" | ") for line in settings.page().splitlines() if "`FINETUNE_" in line]
    named = {row[0].removeprefix("| ").strip("`") for row in rows}
    assert {f"FINETUNE_{name.upper()}" for name in Settings.model_fields} <= named
    assert [row for row in rows if len(row[2].split()) < 3] == []


def test_a_size_has_a_unit() -> None:
    assert "| `FINETUNE_MAX_UPLOAD_BYTES` | 5 GiB | Size of" in settings.page()


def test_each_route_is_in_a_section() -> None:
    paths = document()["paths"]
    listed = {line.split("`")[1] for line in routes.page().splitlines() if line.startswith("| `")}
    assert listed == {f"{method.upper()} {path}" for path in paths for method in paths[path]}


def test_a_command_of_a_group_has_its_arguments_and_options() -> None:
    page = commands.page()
    assert "| `finetune search plot SEARCH NAME` | Save a figure" in page
    assert "| `finetune keys create NAME` |" in page
