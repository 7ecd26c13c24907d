"""worker.tasks.preference.rows: every form of a pair gives the same conversations."""

from typing import Any

import pytest

from service.contract.tasks.preference import PreferenceSpec, RewardSpec
from worker.data.table import RowError
from worker.tasks.preference import rows
from worker.tasks.preference.rows import RewardRowCleaner, RowCleaner

USER = {"role": "user", "content": "Who wrote it?"}
GOOD = {"role": "assistant", "content": "Ada."}
BAD = {"role": "assistant", "content": "Nobody knows."}
TOOLS = [{"type": "function", "function": {"name": "find", "parameters": {}}}]
PAIR = {"prompt": "Who wrote it?", "chosen": "Ada.", "rejected": "Nobody knows."}


def cleaned(row: dict[str, Any], loss_type: str = "sigmoid", split: str = "train") -> Any:
    return RowCleaner(split, PreferenceSpec.model_validate({"loss_type": loss_type}))(row)


def talks(row: dict[str, Any]) -> list[list[Any]]:
    return [list(each.messages) for each in rows.load(row)]


class TestForms:
    @pytest.mark.parametrize(
        "row",
        [
            PAIR,
            {"prompt": [USER], "chosen": [GOOD], "rejected": [BAD]},
            {"prompt": [USER], "chosen": "Ada.", "rejected": "Nobody knows."},
            {"chosen": [USER, GOOD], "rejected": [USER, BAD]},
            {
                "input": {"messages": [USER], "parallel_tool_calls": True},
                "preferred_output": [GOOD],
                "non_preferred_output": [BAD],
            },
            {**PAIR, "completion": None, "label": True, "tools": None},
        ],
    )
    def test_of_a_pair(self, row: dict[str, Any]) -> None:
        found = cleaned(row)
        assert talks(found) == [[USER, GOOD], [USER, BAD]]
        assert (found["prompt"], found["labels"], found["tools"]) == (1, [True, False], "")

    @pytest.mark.parametrize(
        ("row", "repeats"),
        [
            (PAIR, False),
            (PAIR | {"chosen": "Who wrote it? Ada.", "rejected": "Who wrote it? Me."}, True),
            (PAIR | {"chosen": "Who wrote it? Ada."}, False),
            (PAIR | {"chosen": [USER, GOOD], "rejected": [USER, BAD]}, True),
            ({"prompt": [USER], "chosen": [USER, GOOD], "rejected": [USER, BAD]}, True),
            ({"chosen": [USER, GOOD], "rejected": [USER, BAD]}, False),
            ({"chosen": "Who is it? Ada.", "rejected": "Who is it? Me."}, False),
        ],
    )
    def test_answers_that_begin_with_their_own_prompt_are_counted(
        self, row: dict[str, Any], *, repeats: bool
    ) -> None:
        clean = RowCleaner("train", PreferenceSpec())
        clean(row)
        assert clean.counts["repeated_prompt"] == repeats

    def test_texts_may_be_joined_where_there_is_no_template(self) -> None:
        assert cleaned(PAIR)["form"] == rows.TEXT
        assert cleaned({**PAIR, "prompt": [USER]})["form"] == rows.TURNS

    def test_texts_may_begin_with_their_prompt(self) -> None:
        start = "Human: Who wrote it? Assistant: "
        found = cleaned({"chosen": start + "Ada Lovelace.", "rejected": start + "Adam Smith."})
        assert found["form"] == rows.TRANSCRIPT
        assert [[turn["content"] for turn in talk] for talk in talks(found)] == [
            [start, "Ada Lovelace."],
            [start, "Adam Smith."],
        ]

    def test_tools(self) -> None:
        row = {"input": {"messages": [USER], "tools": TOOLS}}
        outputs = {"preferred_output": [GOOD], "non_preferred_output": [BAD]}
        asked, given = cleaned(row | outputs), cleaned({**PAIR, "tools": TOOLS})
        assert asked["tools"] == given["tools"] != ""
        assert [each.tools for each in rows.load(asked)] == [TOOLS, TOOLS]

    @pytest.mark.parametrize(
        ("label", "expected"), [(True, True), (False, False), (1, True), ("False", False)]
    )
    def test_of_a_single_answer(self, label: Any, expected: bool) -> None:
        row = {"prompt": "Who wrote it?", "completion": "Ada.", "label": label}
        found = cleaned(row, "kto")
        assert talks(found) == [[USER, GOOD]]
        assert found["labels"] == [expected]

    def test_kto_learns_from_pairs_as_well(self) -> None:
        assert cleaned(PAIR, "kto")["labels"] == [True, False]

    def test_a_row_to_predict_waits_for_an_answer(self) -> None:
        found = cleaned({"prompt": "Who wrote it?"}, split="test")
        assert (talks(found), found["labels"]) == ([[USER]], [])

    @pytest.mark.parametrize(
        "row",
        [
            {"messages": [USER, GOOD]},
            {"prompt": "Who wrote it?", "completion": "Ada."},
            {"prompt": [USER], "chosen": [GOOD]},
        ],
    )
    def test_a_row_to_score(self, row: dict[str, Any]) -> None:
        found = RewardRowCleaner("test", RewardSpec())({**row, "margin": "unused"})
        assert (talks(found), found["prompt"], found["margin"]) == ([[USER, GOOD]], 1, None)


class TestMargins:
    @pytest.mark.parametrize(
        ("given", "margin"), [(1, 1.0), (-0.5, -0.5), (" 2.5 ", 2.5), (None, None), ("", None)]
    )
    def test_are_numbers(self, given: Any, margin: float | None) -> None:
        found = RewardRowCleaner("train", RewardSpec())({**PAIR, "margin": given})
        assert found["margin"] == margin

    @pytest.mark.parametrize("given", ["much", True, [1], float("nan"), "inf", 1e39])
    def test_others_are_bad_rows(self, given: Any) -> None:
        with pytest.raises(RowError, match="`margin` must be a number") as caught:
            RewardRowCleaner("train", RewardSpec())({**PAIR, "margin": given})
        assert caught.value.reason == "invalid_margin"

    @pytest.mark.parametrize(
        ("first", "second", "reason"),
        [(0.5, None, "missing_value"), (None, 0.5, "invalid_margin")],
    )
    def test_every_row_has_one_or_none_has(self, first: Any, second: Any, reason: str) -> None:
        """TRL fails at a null among numbers."""
        cleaner = RewardRowCleaner("train", RewardSpec())
        cleaner({**PAIR, "margin": first})
        with pytest.raises(RowError, match="earlier rows") as caught:
            cleaner({**PAIR, "margin": second})
        assert caught.value.reason == reason


class TestBadRows:
    @pytest.mark.parametrize(
        ("row", "reason", "words"),
        [
            ({"prompt": "a"}, "missing_value", "no `chosen` and `rejected`"),
            ({**PAIR, "rejected": "Ada."}, "equal_answers", "`chosen` and `rejected` are equal"),
            ({**PAIR, "chosen": ""}, "empty_assistant_turn", "chosen: the assistant's"),
            ({**PAIR, "chosen": [USER]}, "no_assistant_turn", "`chosen` has no turn"),
            ({**PAIR, "chosen": 3}, "not_a_list", "must be text or a list of turns, not int"),
            ({**PAIR, "prompt": ""}, "no_prompt", "the row has no prompt"),
            ({"chosen": "Ada.", "rejected": "Bob."}, "no_prompt", "no common beginning"),
            ({"chosen": [GOOD], "rejected": [BAD]}, "no_prompt", "no common beginning"),
            ({"chosen": [USER, GOOD], "rejected": [USER]}, "no_assistant_turn", "`rejected`"),
            (
                {"input": "a", "preferred_output": [GOOD], "non_preferred_output": [BAD]},
                "invalid_value",
                "`input` must be {messages: […]}, not str",
            ),
            (
                {**PAIR, "preferred_output": [GOOD], "non_preferred_output": [BAD]},
                "two_forms",
                "give one form",
            ),
            (
                {"prompt": "a", "completion": "b", "label": True},
                "not_a_pair",
                "the row has one answer, and only `preference` with `loss_type: kto` learns from",
            ),
        ],
    )
    def test_have_a_reason(self, row: dict[str, Any], reason: str, words: str) -> None:
        with pytest.raises(RowError) as caught:
            cleaned(row)
        assert caught.value.reason == reason
        assert words in str(caught.value)

    def test_all_problems_at_once(self) -> None:
        row = {"prompt": [{"role": "usr", "content": "a"}], "chosen": "", "rejected": [{}]}
        with pytest.raises(RowError) as caught:
            cleaned(row)
        for words in ("'usr'", "chosen: the assistant's turn", "rejected[0] has no `role`"):
            assert words in str(caught.value)

    @pytest.mark.parametrize(
        ("row", "message"),
        [
            (
                {"input": "a", "preferred_output": [GOOD], "non_preferred_output": [BAD]},
                "`input` must be {messages: […]}, not str",
            ),
            ({**PAIR, "prompt": 5}, "`prompt` must be text or a list of turns, not int"),
            (
                {"good": "a", "bad": "b"},
                "the row has no `chosen` and `rejected`, no `preferred_output` and "
                "`non_preferred_output`: give one of these forms, or name your columns in "
                "`dataset.columns`",
            ),
        ],
    )
    def test_what_follows_from_a_problem_is_not_another(
        self, row: dict[str, Any], message: str
    ) -> None:
        with pytest.raises(RowError) as caught:
            cleaned(row)
        assert str(caught.value) == message

    @pytest.mark.parametrize("label", ["maybe", 2, [True]])
    def test_labels_are_true_or_false(self, label: Any) -> None:
        with pytest.raises(RowError, match="`label` must be true or false"):
            cleaned({"prompt": "a", "completion": "b", "label": label}, "kto")

    def test_a_row_without_a_prompt_cannot_be_predicted(self) -> None:
        with pytest.raises(RowError, match="the row has no `prompt`"):
            cleaned({"messages": [USER]}, split="test")
