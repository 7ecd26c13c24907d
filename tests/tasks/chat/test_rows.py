import json
from typing import Any

import pytest

from service.contract.tasks.chat import ChatSpec
from tests.tasks.chat.support import turn
from worker.data.table import RowError
from worker.tasks.chat.rows import RowCleaner, load

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": '{"a": 1}'}}
NOT_JSON = {"name": "add", "arguments": '{"a": NaN}'}
ASKED = [turn("user", "what?"), turn("assistant", "that")]


def cleaned(row: dict[str, Any], split: str = "train") -> dict[str, Any]:
    return RowCleaner(split, ChatSpec())(row)


def messages(row: dict[str, Any], split: str = "train") -> Any:
    return load(cleaned(row, split)).messages


def refused(row: dict[str, Any], split: str = "train") -> tuple[str, str]:
    with pytest.raises(RowError) as caught:
        cleaned(row, split)
    return caught.value.reason, str(caught.value)


class TestForms:
    @pytest.mark.parametrize(
        "row",
        [
            {"messages": ASKED},
            {"messages": json.dumps(ASKED), "extra": 1},
            {"messages": [{"from": "human", "value": "what?"}, {"from": "gpt", "value": "that"}]},
            {"prompt": "what?", "completion": "that"},
            {"prompt": ASKED[:1], "completion": ASKED[1:]},
            {"instruction": "what?", "input": "", "output": "that"},
            {"messages": ASKED, "prompt": "what?", "completion": None},
        ],
    )
    def test_are_the_same_conversation(self, row: dict[str, Any]) -> None:
        found = cleaned(row)
        assert json.loads(found["messages"]) == ASKED
        assert (found["tools"], found["prompt"]) == ("", 1)

    def test_the_input_follows_the_instruction_after_an_empty_line(self) -> None:
        row = {"instruction": "Translate.", "input": "water", "output": "Wasser"}
        assert messages(row)[0]["content"] == "Translate.\n\nwater"

    @pytest.mark.parametrize(
        ("row", "reason"),
        [
            ({}, "missing_value"),
            ({"prompt": "what?"}, "missing_value"),
            ({"messages": ASKED, "instruction": "a", "output": "b"}, "two_forms"),
        ],
    )
    def test_a_row_has_one(self, row: dict[str, Any], reason: str) -> None:
        assert refused(row)[0] == reason

    @pytest.mark.parametrize(
        "row", [{"messages": ASKED[:1]}, {"prompt": "what?"}, {"instruction": "what?"}]
    )
    def test_a_row_to_predict_may_lack_the_answer(self, row: dict[str, Any]) -> None:
        assert messages(row, "test") == ASKED[:1]
        assert load(cleaned(row, "test")).prompt == 1


class TestTurns:
    def test_nulls_and_parts_and_older_names(self) -> None:
        row = {
            "messages": [
                {"role": "user", "content": [{"type": "text", "text": "a"}] * 2, "name": None},
                {"role": "assistant", "content": None, "tool_calls": [{**CALL, "extra": None}]},
                {"role": "tool", "content": "1", "tool_call_id": "c1"},
                {"role": "assistant", "thinking": "hm", "content": "1", "weight": 0},
                {"role": "assistant", "function_call": {"name": "add", "arguments": "{}"}},
                {"role": "function", "name": "add", "content": ""},
                {"role": "assistant", "content": "1", "weight": 1.0},
            ],
            "tools": [{"name": "add", "parameters": {"a": None}}],
        }
        function = {"name": "add", "arguments": {"a": 1}}
        assert messages(row) == [
            turn("user", "aa"),
            {
                "role": "assistant",
                "tool_calls": [{"id": "c1", "type": "function", "function": function}],
            },
            turn("tool", "1", tool_call_id="c1"),
            turn("assistant", "1", reasoning_content="hm", weight=0),
            {
                "role": "assistant",
                "tool_calls": [{"type": "function", "function": {"name": "add", "arguments": {}}}],
            },
            turn("tool", "", name="add"),
            turn("assistant", "1"),
        ]
        tool = {"type": "function", "function": {"name": "add", "parameters": {}}}
        assert load(cleaned(row)).tools == [tool]

    @pytest.mark.parametrize(
        ("turns", "reason", "words"),
        [
            ("none", "not_a_list", "`messages` must be a list of turns, not str"),
            ([], "no_turns", "has no turns"),
            ([*ASKED, 3], "not_an_object", "messages[2] must be an object, not int"),
            ([*ASKED, {"content": "a"}], "missing_role", "messages[2] has no `role`"),
            ([*ASKED, {"role": "user"}], "missing_content", "messages[2] has no `content`"),
            ([*ASKED, turn("user", "  ")], "missing_content", "the user's turn is empty"),
            ([*ASKED, turn("gpt", "a")], "unknown_role", "'gpt'; did you mean 'assistant'?"),
            ([*ASKED, turn("asistant", "a")], "unknown_role", "did you mean 'assistant'?"),
            ([*ASKED, turn("user", "a", wieght=1)], "unknown_key", "did you mean `weight`?"),
            (
                [*ASKED, turn("user", "a", text="b")],
                "unknown_key",
                "'text'; turns have role, content",
            ),
            ([*ASKED, {"role": 1}], "invalid_content", "messages[2].role must be text, not int"),
            ([*ASKED, turn("user", 3)], "invalid_content", "not int"),  # type: ignore[arg-type]
            (
                [{"role": "user", "content": [{"type": "image_url"}]}, ASKED[1]],
                "unsupported_content",
                "messages[0].content[0]: only parts {type: text, text: …} are supported",
            ),
            ([*ASKED, turn("assistant", "")], "empty_assistant_turn", "messages[2]"),
            (ASKED[:1], "no_assistant_turn", "no turn of the assistant"),
            ([ASKED[0], turn("assistant", "a", weight=0)], "nothing_to_train", "weight 0"),
            ([*ASKED, turn("assistant", "a", weight=0.5)], "invalid_weight", "0 or 1, not 0.5"),
            ([*ASKED, turn("assistant", "a", weight="1")], "invalid_weight", "0 or 1, not str"),
            ([*ASKED, turn("tool", "a")], "unexpected_result", "no call of a tool"),
            (
                [
                    *ASKED,
                    {"role": "assistant", "tool_calls": [CALL]},
                    turn("tool", "1", tool_call_id="c2"),
                ],
                "unexpected_result",
                "'c2' is of no call",
            ),
            (
                [*ASKED, {"role": "assistant", "tool_calls": [{"name": "a", "arguments": "{"}]}],
                "malformed_tool_calls",
                "messages[2].tool_calls[0].arguments is not valid JSON",
            ),
            (
                [*ASKED, {"role": "assistant", "tool_calls": [NOT_JSON]}],
                "invalid_value",
                "`messages[2]` holds something that is not JSON: Out of range float values",
            ),
            (
                [*ASKED, {"role": "assistant", "tool_calls": [{"function": {}}]}],
                "malformed_tool_calls",
                "must name its function",
            ),
            ([*ASKED, turn("user", "a\udc9b")], "invalid_unicode", "`messages[2]`"),
            (ASKED * 5001, "too_many_turns", "10,002 turns, more than 10,000"),
        ],
    )
    def test_each_problem_has_its_reason(self, turns: Any, reason: str, words: str) -> None:
        found, message = refused({"messages": turns})
        assert found == reason
        assert words in message

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            ({"messages": "none"}, "`messages` must be a list of turns, not str"),
            ({"messages": []}, "`messages` has no turns"),
            (
                {"messages": [*ASKED, {"role": "assistant", "tool_calls": "add"}]},
                "messages[2].tool_calls must be a list, not str",
            ),
            (
                {"messages": [{"role": "user", "content": [{"type": "image"}]}, ASKED[1]]},
                "messages[0].content[0]: only parts {type: text, text: …} are supported, not "
                "'image'",
            ),
            (
                {"messages": '[{"role": "user"'},
                "`messages` is not valid JSON: Expecting ',' delimiter at character 17",
            ),
            ({"prompt": "a", "completion": ""}, "completion: the assistant's turn is empty"),
            (
                {"prompt": 3, "completion": "a"},
                "`prompt` must be text or a list of turns, not int",
            ),
            ({"instruction": "a", "output": 3}, "`output` must be text, not int"),
            ({"prompt": "a", "completion": ASKED[:1]}, "`completion` has no turn of the assistant"),
            (
                {"question": "a"},
                "the row has no `messages`, no `prompt` with `completion`, no `instruction` with "
                "`output`: give one of these forms, or name your columns in `dataset.columns`",
            ),
            (
                {"messages": ASKED, "prompt": "a", "completion": "b"},
                "the row has `messages`, and also `prompt` with `completion`: give one form",
            ),
        ],
    )
    def test_what_follows_from_a_problem_is_not_another(
        self, row: dict[str, Any], message: str
    ) -> None:
        assert refused(row)[1] == message

    def test_all_problems_are_named_at_once_up_to_five(self) -> None:
        _, message = refused({"messages": [turn("nobody", "a")] * 7 + ASKED})
        assert message.count("unknown role") == 5
        assert message.endswith("; and 2 more")

    def test_deep_nesting_is_a_problem_of_the_row(self) -> None:
        arguments = "[" * 100_000 + "]" * 100_000
        call = {"name": "a", "arguments": arguments}
        found = refused({"messages": [*ASKED, {"role": "assistant", "tool_calls": [call]}]})
        assert found[0] == "malformed_tool_calls"
        assert refused({"messages": arguments})[0] == "not_a_list"

    def test_so_is_nesting_that_the_reader_of_the_file_still_takes(self) -> None:
        arguments = json.loads('{"a": ' * 800 + "1" + "}" * 800)
        call = {"name": "a", "arguments": arguments}
        turns = [*ASKED, {"role": "assistant", "tool_calls": [call]}]
        reason, message = refused({"messages": turns})
        assert reason == "malformed_tool_calls"
        assert message == "messages[2].tool_calls[0] is nested too deeply"
        reason, message = refused({"messages": ASKED, "tools": [call]})
        assert (reason, message) == ("malformed_tools", "tools[0] is nested too deeply")
