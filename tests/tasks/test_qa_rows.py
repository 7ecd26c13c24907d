import json
from typing import Any

import pytest

from service.contract.failures import FailureCode
from service.contract.parameters import QuestionAnsweringSpec
from worker.tasks.base import RowError
from worker.tasks.qa_rows import RowCleaner

NONE: dict[str, list[Any]] = {"text": [], "answer_start": []}


def make_row(**changes: Any) -> dict[str, Any]:
    row = {"question": "Who?", "context": "It was Ada.", "id": "a"}
    return row | {"answers": {"text": ["Ada"], "answer_start": [7]}} | changes


def cleaner(split: str = "train", *, v2: bool = False) -> RowCleaner:
    return RowCleaner(split, QuestionAnsweringSpec(version_2_with_negative=v2))


class TestRowCleaner:
    def test_passes_a_good_row(self) -> None:
        assert cleaner()(make_row()) == make_row()

    @pytest.mark.parametrize(
        "answers",
        [
            {"text": "Ada", "answer_start": 7},
            [{"text": "Ada", "answer_start": 7}],
            json.dumps({"text": ["Ada"], "answer_start": [7]}),
        ],
    )
    def test_accepts_answers_in_every_form(self, answers: Any) -> None:
        assert cleaner()(make_row(answers=answers)) == make_row()

    @pytest.mark.parametrize("answers", [NONE, [], None, "", "[]"])
    def test_accepts_no_answer_in_v2(self, answers: Any) -> None:
        assert cleaner(v2=True)(make_row(answers=answers))["answers"] == NONE

    def test_refuses_no_answer_in_v1_by_naming_the_option(self) -> None:
        with pytest.raises(RowError, match="version_2_with_negative") as caught:
            cleaner()(make_row(answers=NONE))
        assert caught.value.code is FailureCode.INVALID_OPTION

    def test_the_test_split_needs_no_answers(self) -> None:
        row = make_row()
        del row["answers"]
        assert cleaner("test")(row)["answers"] == NONE

    @pytest.mark.parametrize(
        ("changes", "problem"),
        [
            ({"question": None}, "`question` must be text, not null"),
            ({"context": 3}, "`context` must be text, not int"),
            ({"context": " "}, "`context` is empty"),
            ({"question": "\ud800"}, "`question` is not valid Unicode: surrogates not allowed"),
            ({"id": 1.5}, "`id` must be text or a whole number, not float"),
            ({"answers": 3}, "`answers` must be an object with `text` and `answer_start`"),
            ({"answers": "Ada"}, "`answers` is text, but not JSON"),
            ({"answers": ["Ada"]}, "each of `answers` must be an object"),
            ({"answers": {"text": ["Ada"], "answer_start": []}}, "1 texts but 0 answer_start"),
            ({"answers": {"text": ["Ada"], "answer_start": [-1]}}, "whole number from 0, not -1"),
            ({"answers": {"text": ["Ada"], "answer_start": ["7"]}}, "whole number from 0, not '7'"),
            ({"answers": {"text": [None], "answer_start": [7]}}, "`answers.text` must be text"),
            (
                {"answers": {"text": ["Ada"], "answer_start": [6]}},
                "the answer 'Ada' does not stand in the context at answer_start 6: there is ' Ad'",
            ),
            ({"answers": {"text": ["Ada"], "answer_start": [99]}}, "there is ''"),
        ],
    )
    def test_names_what_is_wrong(self, changes: dict[str, Any], problem: str) -> None:
        with pytest.raises(RowError) as caught:
            cleaner()(make_row(**changes))
        assert problem in str(caught.value)

    def test_numbers_rows_without_an_id(self) -> None:
        clean = cleaner("validation")
        assert [clean(make_row(id=None))["id"] for _ in range(3)] == ["0", "1", "2"]

    def test_refuses_an_id_that_occurs_twice_where_answers_are_told_apart_by_it(self) -> None:
        clean = cleaner("validation")
        clean(make_row(id=5))
        with pytest.raises(RowError, match="`id` '5' occurs a second time"):
            clean(make_row(id="5"))
        train = cleaner("train")
        assert train(make_row()) == train(make_row())
