"""worker.data.held_out: a validation split out of the training rows."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from tests.support.models import save_tiny_bert
from tests.tasks.stages import StagedJob, job_of
from worker.data.held_out import HeldOut
from worker.data.table import Table
from worker.tasks.base import load_splits

ROWS = [str(number) for number in range(50)]


class _Files:
    """Training rows in files of uneven length, and a test file."""

    revision: str | None = None

    def splits(self) -> tuple[str, ...]:
        return ("train", "test")

    def fingerprint(self) -> Any:
        return "rows"

    def names(self, split: str) -> list[str]:
        return [split]

    def rows(self, split: str) -> int | None:
        raise NotImplementedError

    def tables(self, split: str) -> Iterator[Table]:
        parts = [ROWS[:7], ROWS[7:8], ROWS[8:]] if split == "train" else [["t"]]
        for part in parts:
            rows = [(f"row {value}", {"text": value}) for value in part]
            yield Table(("text",), lambda _wanted, rows=rows: iter(rows))  # type: ignore[misc]


def values(data: Any, split: str) -> list[str]:
    return [
        row["text"] for table in data.tables(split) for _, row in table.rows(table.columns or ())
    ]


class TestHeldOut:
    def test_every_row_is_in_one_of_the_two_in_order(self) -> None:
        data = HeldOut(_Files(), 10, 42)
        assert data.splits() == ("train", "validation", "test")
        train, validation = values(data, "train"), values(data, "validation")
        assert (len(train), len(validation)) == (45, 5)
        assert sorted(train + validation, key=int) == ROWS
        assert train == sorted(train, key=int)
        assert validation == sorted(validation, key=int)
        assert values(data, "test") == ["t"]

    def test_it_follows_from_the_seed(self) -> None:
        chosen = values(HeldOut(_Files(), 20, 42), "validation")
        assert values(HeldOut(_Files(), 20, 42), "validation") == chosen
        assert values(HeldOut(_Files(), 20, 43), "validation") != chosen
        prints = [HeldOut(_Files(), *of).fingerprint() for of in ((20, 42), (20, 43), (21, 42))]
        assert len({str(each) for each in prints}) == 3

    @pytest.mark.parametrize(("percentage", "size"), [(1, 1), (99, 49), (50, 25)])
    def test_neither_is_empty(self, percentage: int, size: int) -> None:
        assert len(values(HeldOut(_Files(), percentage, 0), "validation")) == size

    def test_a_single_row_cannot_be_split(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tests.data.test_held_out.ROWS", ["1"])
        with pytest.raises(StageError, match="at least two training rows") as raised:
            values(HeldOut(_Files(), 10, 0), "train")
        assert raised.value.failure.code is FailureCode.EMPTY_DATASET


class TestJob:
    def job(self, tmp_path: Path, **training: Any) -> StagedJob:
        rows = [
            {"question": "What is it?", "context": f"It is {number}.", "id": str(number)}
            | {"answers": {"text": [str(number)], "answer_start": [6]}}
            for number in range(20)
        ]
        task = {"type": "question-answering", "max_seq_length": 32, "doc_stride": 8}
        dataset = {"train": rows, "validation_split_percentage": 15}
        options = {"max_steps": 1, "eval_strategy": "epoch", **training}
        return job_of(tmp_path, task, save_tiny_bert(tmp_path / "bert"), dataset, options)

    def held_out(self, job: StagedJob) -> list[str]:
        return list(load_splits(job.prepare().prepared_dir)["validation"].examples["id"])

    def test_any_task_trains_on_the_rest_and_is_evaluated(self, tmp_path: Path) -> None:
        job = self.job(tmp_path)
        result, _ = job.train()
        assert job.prepared is not None
        counts = {split: each["examples"] for split, each in job.prepared.splits.items()}
        assert counts == {"train": 17, "validation": 3}
        assert "eval_f1" in result.metrics

    def test_the_order_s_seed_decides_if_there_is_one(self, tmp_path: Path) -> None:
        chosen = {
            (seed, data_seed): self.held_out(self.job(tmp_path, seed=seed, data_seed=data_seed))
            for seed, data_seed in ((1, None), (2, None), (1, 7), (2, 7))
        }
        assert chosen[1, None] != chosen[2, None]
        assert chosen[1, 7] == chosen[2, 7]
