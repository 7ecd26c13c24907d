"""The specs of examples/ are valid, name files that exist, and are listed."""

from json import loads
from pathlib import Path

import pytest

from service.cli.spec import local_files
from service.cli.spec.spec_file import read_spec
from service.contract.search.spec import SearchSpec
from service.contract.spec.spec import JobSpec
from tests.docs.pages import ROOT, code_spans

FOLDER = ROOT / "examples"
SPECS = sorted(FOLDER.glob("*.yaml"))


class TestExamples:
    @pytest.mark.parametrize("path", SPECS, ids=lambda path: path.stem)
    def test_is_a_valid_spec_once_its_files_are_uploaded(self, path: Path) -> None:
        spec = read_spec(path)
        job = spec.get("job", spec)  # of a search: its template
        files = local_files.named_in(job, FOLDER)
        assert files
        assert [file.name for file in files if not file.path.is_file()] == []
        uploaded = {file.name: f"file-{number:032x}" for number, file in enumerate(files)}
        valid = local_files.replaced(job, uploaded)
        model = JobSpec if job is spec else SearchSpec
        assert (
            model.model_validate(valid if job is spec else spec | {"job": valid}).name is not None
        )

    def test_each_is_listed(self) -> None:
        named = code_spans((FOLDER / "README.md").read_text(encoding="utf-8"))
        assert {path.name for path in SPECS} == {name for name in named if name.endswith(".yaml")}


def test_the_notebook_is_kept_without_what_it_showed() -> None:
    """Outputs hold paths and ids of the machine where it ran."""
    notebook = loads((FOLDER / "python_client" / "train.ipynb").read_text("utf-8"))
    cells = [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert [(cell["outputs"], cell["execution_count"]) for cell in cells] == [([], None)] * len(
        cells
    )
    assert len(cells) > 5
