"""`data_report.json`: rows of a public set with its real kinds of faults, skipped and counted."""

import json
from pathlib import Path
from typing import Any

from service.contract.failures import FailureCode
from tests.data.squad_sample import squad_rows
from tests.stages.support import Run, spec
from worker.tasks.base import load_splits


def faulty(rows: list[dict[str, Any]]) -> tuple[list[dict[str, Any]], dict[str, int]]:
    """Every 3rd answer a few characters off, every 5th with blanks around, two rows spoilt."""
    made, realigned = [], 0
    for number, row in enumerate(rows):
        texts, starts = list(row["answers"]["text"]), list(row["answers"]["answer_start"])
        if texts and number % 5 == 0:
            texts[0] = f" {texts[0]}\n"
        if texts and number % 3 == 0:
            starts[0] += 1 + number % 7
        realigned += bool(texts) and (number % 5 == 0 or number % 3 == 0)
        made.append({**row, "answers": {"text": texts, "answer_start": starts}})
    made[20:20] = [
        {**rows[0], "answers": {"text": ["no such words"], "answer_start": [0]}},
        {**rows[0], "question": " "},
    ]
    return made, {"read": len(made), "realigned": realigned}


class TestReport:
    def test_of_skipped_and_realigned_rows_and_again_from_the_cache(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        rows, expected = faulty(squad_rows("train"))
        files = {}
        for name in ("file-1", "file-2"):  # the same content under two names
            files[name] = tmp_path / name
            files[name].write_text(json.dumps(rows))
        cache: dict[str, Any] = {"cache_dir": tmp_path / "cache", "files": files}
        dataset: dict[str, Any] = {"source": "upload", "on_bad_row": "skip"}
        ended = run(spec(models / "tiny", train=["file-1"], **dataset), **cache)
        report = json.loads((tmp_path / "job" / "data_report.json").read_text())
        train = report["splits"]["train"]
        assert train["rows_read"] == expected["read"] == 54
        assert (train["rows_used"], train["rows_skipped"]) == (52, 2)
        assert train["skipped_by_reason"] == {"answer_not_found": 1, "empty_text": 1}
        assert train["realigned"] == expected["realigned"] == 14
        assert [row["place"] for row in train["bad_rows"]] == ["file-1, row 21", "file-1, row 22"]
        splits = load_splits(Path(ended.result["prepared_dir"]))
        for row in splits["train"].examples:
            for text, start in zip(*row["answers"].values(), strict=True):
                assert row["context"][start : start + len(text)] == text
        self.check_lengths(train, splits["train"], ended.result["splits"]["train"]["features"])
        summary = ended.result["data_report"]["splits"]["train"]
        assert "bad_rows" not in summary
        assert summary["tokens"] == train["tokens"]
        again = run(spec(models / "tiny", train=["file-2"], **dataset), **cache)
        assert [n for n in again.notices if n.startswith("Reusing the prepared data")]
        second = json.loads((tmp_path / "job" / "data_report.json").read_text())
        assert again.result["data_report"] == ended.result["data_report"]
        for row in train["bad_rows"]:  # the file has another name; everything else is as before
            row["place"] = row["place"].replace("file-1", "file-2")
        assert second == report

    def check_lengths(self, train: dict[str, Any], split: Any, features: int) -> None:
        windows = {int(number): rows for number, rows in train["windows_per_example"].items()}
        assert sum(windows.values()) == 52
        assert sum(number * rows for number, rows in windows.items()) == features
        histogram = train["tokens"]["histogram"]
        assert sum(each["rows"] for each in histogram) == 52
        assert histogram[-1]["to"] == train["tokens"]["max"]
        assert train["truncated"] == 0

    def test_more_bad_rows_than_allowed_end_the_job_with_their_counts(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        rows, _ = faulty(squad_rows("train"))
        (tmp_path / "d.json").write_text(json.dumps(rows))
        dataset: dict[str, Any] = {"on_bad_row": "skip", "max_bad_fraction": 0.03}
        ended = run(spec(models / "tiny", train=str(tmp_path / "d.json"), **dataset))
        assert ended.failure.code is FailureCode.UNREADABLE_ROW
        assert ended.failure.message.startswith(
            "2 of 54 rows of the train split cannot be used (answer_not_found 1, empty_text 1): "
            "3.70% of them, and `dataset.max_bad_fraction` allows 3.00%. d.json, row 21: the answer"
        )
        assert ended.failure.action == (
            "Fix or remove the 2 bad rows (they are listed), then submit again; or raise "
            "`dataset.max_bad_fraction`."
        )
        report = json.loads((tmp_path / "job" / "data_report.json").read_text())
        assert report["splits"]["train"]["rows_skipped"] == 2
        assert ended.artifacts

    def test_the_fractions_are_part_of_the_address(
        self, tmp_path: Path, run: Run, models: Path
    ) -> None:
        cache = {"cache_dir": tmp_path / "cache"}
        options: list[dict[str, Any]] = [{}, {"on_bad_row": "skip"}, {"on_bad_row": "fail"}]
        found = [
            run(spec(models / "tiny", **dataset), **cache).result["data_fingerprint"]
            for dataset in options
        ]
        assert found[0] == found[2] != found[1]
