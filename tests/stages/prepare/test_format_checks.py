"""What OpenAI's published checks find in a file has OpenAI's name for it, line by line."""

from pathlib import Path
from typing import Any, Final

import pytest

from service.contract.failures import StageError
from service.contract.tasks.chat import ChatSpec
from tests.tasks.chat.jobs import ROWS, chat_job, notices
from tests.tasks.preference import support as preference
from tests.tasks.stages import StagedJob, write_rows
from worker.tasks.chat.rows import RowCleaner

ASKED: Final = {"role": "user", "content": "what?"}
ANSWER: Final = {"role": "assistant", "content": "that"}
CHECKED: Final[dict[str, Any]] = {
    "data_type": ["no object"],
    "missing_messages_list": {"conversation": [ASKED, ANSWER]},
    "message_missing_key": {"messages": [{"content": "what?"}, ANSWER]},
    "message_unrecognized_key": {"messages": [{**ASKED, "to": "you"}, ANSWER]},
    "unrecognized_role": {"messages": [{**ASKED, "role": "customer"}, ANSWER]},
    "missing_content": {"messages": [ASKED, {**ANSWER, "content": ""}]},
    "example_missing_assistant_message": {"messages": [ASKED]},
}


def failure_of(job: StagedJob) -> StageError:
    with pytest.raises(StageError) as caught:
        job.prepare()
    return caught.value


def test_each_bad_row_names_its_check_in_the_failure_and_as_an_event(tmp_path: Path) -> None:
    job = chat_job(tmp_path / "job", [ROWS[0], *CHECKED.values()])
    failure = failure_of(job).failure
    assert failure.details["bad_by_check"] == dict.fromkeys(sorted(CHECKED), 1)
    assert [row["check"] for row in failure.details["bad_rows"]] == list(CHECKED)
    messages = [notice for notice in notices(job) if "line" in notice]
    assert [notice.rpartition(" ")[2] for notice in messages] == [f"({name})" for name in CHECKED]
    assert messages[4].startswith(
        "train.jsonl, line 6: messages[0] has the unknown role 'customer'"
    )
    assert messages[4] in failure.message


def test_events_name_the_first_rows_and_count_the_others(tmp_path: Path) -> None:
    job = chat_job(tmp_path / "job", [CHECKED["unrecognized_role"]] * 25)
    assert failure_of(job).failure.details["bad_by_check"] == {"unrecognized_role": 25}
    messages = notices(job)
    assert sum("unrecognized_role" in notice for notice in messages) == 20
    assert messages[-1].startswith("5 more rows cannot be used")


def test_other_reasons_have_no_name_of_openai(tmp_path: Path) -> None:
    row = {"messages": [ASKED, {**ANSWER, "weight": 2}]}
    details = failure_of(chat_job(tmp_path / "job", [row])).failure.details
    assert "bad_by_check" not in details
    assert "check" not in details["bad_rows"][0]


def test_rows_of_preferences_are_named_too(tmp_path: Path) -> None:
    row = {
        "input": {"messages": [{**ASKED, "role": "customer"}], "tools": []},
        "preferred_output": [ANSWER],
        "non_preferred_output": [{**ANSWER, "content": "this"}],
    }
    job = preference.job(tmp_path)
    job.body["dataset"]["train"] = write_rows(tmp_path / "rows.jsonl", [row])
    details = failure_of(job).failure.details
    assert details["bad_by_check"] == {"unrecognized_role": 1}


class TestWarnings:
    def test_of_rows_without_turns_of_the_system_or_the_user(self, tmp_path: Path) -> None:
        system = {"role": "developer", "content": "Be brief."}
        rows = [
            {"messages": [system, ASKED, ANSWER]},
            {"messages": [ASKED, ANSWER]},
            {"messages": [ANSWER]},
        ]
        job = chat_job(tmp_path / "job", rows * 4)
        report = job.prepare().data_report
        assert report is not None
        counts = report["splits"]["train"]
        assert (counts["no_system_message"], counts["no_user_message"]) == (8, 4)
        assert "Of 12 rows of the train split: no system message 8, no user message 4" in (
            notices(job)
        )

    @pytest.mark.parametrize(("rows", "warned"), [(9, True), (10, False)])
    def test_of_few_examples(self, tmp_path: Path, rows: int, warned: bool) -> None:
        job = chat_job(tmp_path / "job", ROWS[:rows])
        job.prepare()
        assert any("takes no fewer than 10" in notice for notice in notices(job)) is warned


class TestFunctions:
    def test_are_tools(self) -> None:
        tool = {"name": "add", "parameters": {"type": "object"}}
        clean = RowCleaner("train", ChatSpec())
        made = clean({"messages": [ASKED, ANSWER], "functions": [tool]})
        assert made == clean({"messages": [ASKED, ANSWER], "tools": [tool]})
        assert '"add"' in made["tools"]
