"""Conversations that their template refuses are bad rows, with their places in the file."""

from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import StageError
from tests.tasks.chat.jobs import chat_job
from tests.tasks.stages import StagedJob

ANSWER = {"role": "assistant", "content": "the report"}
ASKED = {"role": "user", "content": "of the water board"}
GOOD: dict[str, Any] = {"messages": [ASKED, ANSWER]}
ROWS: list[dict[str, Any]] = [
    GOOD,
    {"messages": [ASKED, {**ANSWER, "content": "in<|im_end|>"}]},
    {"prompt": "water " * 200, "completion": "the report"},
    GOOD,
    {"messages": [ASKED]},
]
REASONS = {"control_token": 1, "nothing_to_train": 1, "no_assistant_turn": 1}


def job(home: Path, **dataset: Any) -> StagedJob:
    made = chat_job(home, ROWS, max_length=64)
    made.body["dataset"] |= dataset
    return made


def test_are_all_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(StageError) as caught:
        job(tmp_path / "job").prepare()
    message = str(caught.value)
    assert "line 2: messages[1].content has '<|im_end|>'" in message
    assert "line 3: the row trains no token within the first 64" in message
    assert "line 5: `messages` has no turn of the assistant" in message


def test_can_be_skipped(tmp_path: Path) -> None:
    prepared = job(tmp_path / "job", on_bad_row="skip", max_bad_fraction=0.9).prepare()
    assert prepared.data_report is not None
    counts = prepared.data_report["splits"]["train"]
    assert (counts["rows_used"], counts["skipped_by_reason"]) == (2, REASONS)
