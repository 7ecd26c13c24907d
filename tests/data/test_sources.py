"""Where the rows of a job come from, and how its files are called in messages."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.spec.spec import JobSpec
from service.contract.stage.stages import StageRequest
from worker.data import sources
from worker.data.table import RowError


@pytest.fixture
def files(tmp_path: Path) -> dict[str, Path]:
    """Uploads are stored without the names that their users gave them."""
    stored = {f"file-{number}": tmp_path / f"file-{number}" for number in (1, 2)}
    for path in stored.values():
        path.write_text('text\n"One, two"\nthree, four\n')
    return stored


def rows(files: dict[str, Path], names: dict[str, str]) -> list[tuple[str, Any]]:
    """The rows of all training files, as a job with these uploads reads them."""
    spec = {
        "task": "causal-lm",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "upload", "train": list(files)},
    }
    folder = next(iter(files.values())).parent
    request = StageRequest.model_validate(
        {"job_id": "job-1", "stage": "prepare", "epoch": 1, "attempt": 1}
        | {"spec": JobSpec.model_validate(spec), "workspace": folder, "attempt_dir": folder}
        | {"cache_dir": folder, "files": files, "file_names": names}
    )
    data = sources.resolve(request, lambda _step, _of: None)
    return [
        (place, str(row) if isinstance(row, RowError) else row["text"].rstrip())
        for table in data.tables("train")
        for place, row in table.rows(("text",))
    ]


class TestUploads:
    def test_the_name_gives_the_format(self, files: dict[str, Path]) -> None:
        del files["file-2"]
        assert rows(files, {"file-1": "notes.csv"}) == [
            ("notes.csv, line 2", "One, two"),
            (
                "notes.csv, line 3",
                "2 fields, but the header has 1: put texts that contain `,` in double quotation "
                "marks",
            ),
        ]
        assert [text for _, text in rows(files, {"file-1": "notes.txt"})] == [
            "text",
            '"One, two"',
            "three, four",
        ]

    def test_two_files_of_one_name_are_distinguished(self, files: dict[str, Path]) -> None:
        found = rows(files, dict.fromkeys(files, "a.csv"))
        assert [place for place, _ in found][::2] == [
            "file-1/a.csv, line 2",
            "file-2/a.csv, line 2",
        ]
