import json
import unicodedata
from collections import Counter
from typing import Any, Literal

import pytest

from service.contract.failures import FailureCode
from service.contract.tasks.parameters import QuestionAnsweringSpec
from worker.data.table import RowError
from worker.tasks.question_answering.rows import RowCleaner

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
            " Ada ",
        ],
    )
    def test_accepts_answers_in_every_form(self, answers: Any) -> None:
        assert cleaner()(make_row(answers=answers)) == make_row()

    @pytest.mark.parametrize("start", [15, " 15 ", 15.0, "15.0"])
    def test_an_answer_that_is_text_has_its_start_in_a_column(self, start: Any) -> None:
        row = make_row(context="It was Ada. Yes, Ada.", answers="Ada", answer_start=start)
        found = cleaner()
        assert found(row)["answers"] == {"text": ["Ada"], "answer_start": [17]}
        assert found.counts["realigned"] == 1  # at 15 is the comma

    @pytest.mark.parametrize(
        ("changes", "reason", "problem"),
        [
            ({"context": "Ada, Ada"}, "ambiguous_answer", "2 times: add a column `answer_start`"),
            ({"context": "It was ADA."}, "answer_not_found", "not in the context, letter for"),
            ({"answer_start": "7.5"}, "invalid_answers", "whole number of at least 0, not '7.5'"),
        ],
    )
    def test_an_answer_that_is_text_needs_one_place(
        self, changes: dict[str, Any], reason: str, problem: str
    ) -> None:
        with pytest.raises(RowError, match=problem) as caught:
            cleaner()(make_row(answers="Ada", **changes))
        assert caught.value.reason == reason

    @pytest.mark.parametrize("start", [7, 7.0, "7", "7.0", " 7 "])
    def test_a_start_is_the_same_number_in_any_type(self, start: Any) -> None:
        clean = cleaner()
        assert clean(make_row(answers={"text": ["Ada"], "answer_start": [start]})) == make_row()
        assert clean.counts == {"realigned": 0}

    @pytest.mark.parametrize(
        "answers",
        [
            {"text": [""], "answer_start": [-1]},
            {"text": "", "answer_start": -1.0},
            [{"text": " ", "answer_start": "-1"}],
            {"text": [], "answer_start": [-1]},
            '{"text": [""], "answer_start": [-1]}',
        ],
    )
    def test_an_empty_answer_at_minus_one_is_none_and_counted(self, answers: Any) -> None:
        clean = cleaner(v2=True)
        assert clean(make_row(answers=answers))["answers"] == NONE
        assert clean.counts["marked_unanswerable"] == 1
        with pytest.raises(RowError, match="version_2_with_negative"):
            cleaner()(make_row(answers=answers))

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
            ({"answers": "[Ada"}, "`answers` is text, but not JSON"),
            ({"answers": ["Ada"]}, "each of `answers` must be an object"),
            (
                {"answers": {"text": ["Ada"], "answer_start": []}},
                "1 values of `text` but 0 of `answer_start`",
            ),
            (
                {"answers": {"text": ["Ada"], "answer_start": [-1]}},
                "whole number of at least 0, not -1",
            ),
            (
                {"answers": {"text": ["Ada"], "answer_start": ["seven"]}},
                "whole number of at least 0, not 'seven'",
            ),
            (
                {"answers": {"text": ["Ada"], "answer_start": [7.5]}},
                "whole number of at least 0, not 7.5",
            ),
            (
                {"answers": {"text": [""], "answer_start": [0]}},
                "`answers.text` is empty: a question without an answer has `answers: "
                '{"text": [], "answer_start": []}`',
            ),
            (
                {"answers": {"text": ["Ada", ""], "answer_start": [7, -1]}},
                "`answers.text` is empty",
            ),
            ({"answers": {"text": [None], "answer_start": [7]}}, "`answers.text` must be text"),
            (
                {"answers": {"text": ["Eve"], "answer_start": [6]}},
                "the answer 'Eve' is not in the context within 100 characters of answer_start 6: "
                "there is ' Ad'",
            ),
            ({"answers": {"text": ["Ada"], "answer_start": [108]}}, "there is ''"),
        ],
    )
    def test_names_what_is_wrong(self, changes: dict[str, Any], problem: str) -> None:
        with pytest.raises(RowError) as caught:
            cleaner()(make_row(**changes))
        assert problem in str(caught.value)

    def test_numbers_rows_without_an_id(self) -> None:
        clean = cleaner("validation")
        assert [clean(make_row(id=None))["id"] for _ in range(3)] == ["0", "1", "2"]

    def test_refuses_an_id_that_occurs_twice_where_it_identifies_answers(self) -> None:
        clean = cleaner("validation")
        clean(make_row(id=5))
        with pytest.raises(RowError, match="`id` '5' occurs more than once"):
            clean(make_row(id="5"))
        train = cleaner("train")
        assert train(make_row()) == train(make_row())


class TestAnswersElsewhere:
    """An answer that is not at its `answer_start` is used at its nearest occurrence."""

    def located(self, context: str, text: str, start: int) -> tuple[str, int, int]:
        clean = cleaner()
        row = clean(make_row(context=context, answers={"text": [text], "answer_start": [start]}))
        (found,), (at,) = row["answers"]["text"], row["answers"]["answer_start"]
        assert context[at : at + len(found)] == found
        return found, at, clean.counts["realigned"]

    @pytest.mark.parametrize(
        ("context", "text", "start", "expected"),
        [
            ("It was Ada.", "Ada", 7, ("Ada", 7, 0)),
            ("It was Ada.", "Ada", 5, ("Ada", 7, 1)),
            ("Ada it was.", "Ada", 3, ("Ada", 0, 1)),  # at the text's beginning
            ("It was Ada", "Ada", 4, ("Ada", 7, 1)),  # at its end
            ("It was Ada", "Ada", 90, ("Ada", 7, 1)),  # given as behind it
            ("Ada, Ada, Ada", "Ada", 4, ("Ada", 5, 1)),  # the nearest of three
            ("Ada Ada", "Ada", 2, ("Ada", 0, 1)),  # of two as near the earlier
            ("aaaa", "aa", 5, ("aa", 2, 1)),  # occurrences may overlap
            ("It was Ada.", " Ada ", 6, ("Ada", 7, 1)),  # blanks alone
            ("It was Ada.", "Ada\n", 7, ("Ada", 7, 1)),
            ("It was Ada.", "\u00a0Ada", 6, ("Ada", 7, 1)),
            ("It was  Ada.", " Ada", 7, (" Ada", 7, 0)),  # blanks that are there stay
            ("né à Málaga, 😀 à Paris", "Paris", 18, ("Paris", 17, 1)),  # code points, not bytes
            ("x" * 100 + "Ada", "Ada", 0, ("Ada", 100, 1)),  # a hundred characters away
            ("Ada" + "x" * 97 + "y" * 10, "Ada", 100, ("Ada", 0, 1)),
        ],
    )
    def test_is_used_at_its_nearest_occurrence(
        self, context: str, text: str, start: int, expected: tuple[str, int, int]
    ) -> None:
        assert self.located(context, text, start) == expected

    @pytest.mark.parametrize(
        ("context", "text", "start"),
        [
            ("It was Ada.", "ada", 7),  # another word
            ("x" * 101 + "Ada", "Ada", 0),  # too far behind
            ("Ada" + "x" * 120, "Ada", 101),  # and before
            ("A d a", "Ada", 0),  # blanks within it count
            ("It was Ada.", "Ada.B", 7),
        ],
    )
    def test_one_that_is_not_there_is_a_bad_row(self, context: str, text: str, start: int) -> None:
        with pytest.raises(RowError, match="is not in the context within 100 characters") as caught:
            self.located(context, text, start)
        assert caught.value.reason == "answer_not_found"

    def test_of_several_answers_each_is_looked_for_and_one_that_is_missing_costs_the_row(
        self,
    ) -> None:
        clean = cleaner("validation")
        several: dict[str, list[Any]] = {
            "text": ["Ada", "was Ada ", "Ada."],
            "answer_start": [7, 3, 5],
        }
        found = clean(make_row(answers=several))["answers"]
        assert found == {"text": ["Ada", "was Ada", "Ada."], "answer_start": [7, 3, 7]}
        assert clean.counts["realigned"] == 2
        several["text"][2] = "Eve"
        with pytest.raises(RowError, match="'Eve' is not in the context"):
            clean(make_row(id="b", answers=several))
        assert clean.counts["realigned"] == 2  # a row that is not used counts nothing

    def test_an_impossible_question_has_nothing_to_look_for(self) -> None:
        clean = cleaner(v2=True)
        assert clean(make_row(answers=NONE))["answers"] == NONE
        assert clean.counts["realigned"] == 0

    def test_a_bad_row_leaves_no_trace(self) -> None:
        clean = cleaner("validation")
        with pytest.raises(RowError):
            clean(make_row(context=""))
        assert clean(make_row())["id"] == "a"
        with pytest.raises(RowError):
            clean(make_row(id=None, context=""))
        assert clean(make_row(id=None))["id"] == "1"


Form = Literal["NFC", "NFD"]


class TestNormalForms:
    """Answer and context are the same letters, composed (NFC) in one and not (NFD) in the other."""

    TEXT = "Où est né René? À Málaga, près de René."

    def located(self, context_form: Form, answer: str, start: Any, counted: str) -> tuple[str, int]:
        context = unicodedata.normalize(context_form, self.TEXT)
        clean = cleaner()
        answers = answer if start is None else {"text": [answer], "answer_start": [start]}
        found = clean(make_row(context=context, answers=answers))["answers"]
        assert clean.counts == Counter({"realigned": 0, counted: 1})
        (text,), (at,) = found["text"], found["answer_start"]
        assert context[at : at + len(text)] == text
        return text, at

    @pytest.mark.parametrize(("form", "other"), [("NFC", "NFD"), ("NFD", "NFC")])
    def test_an_answer_is_found_as_the_context_writes_it(self, form: Form, other: Form) -> None:
        written = unicodedata.normalize(form, "Málaga")
        answer = unicodedata.normalize(other, "Málaga")
        place = unicodedata.normalize(form, self.TEXT).index(written)
        counted = unicodedata.normalize(other, self.TEXT).index(answer)
        for start in (place, counted, None):  # counted in the characters of either
            assert self.located(form, answer, start, "other_normal_form") == (written, place)

    def test_of_two_places_the_start_decides(self) -> None:
        answer = unicodedata.normalize("NFD", "René")
        for number in (self.TEXT.index("René"), self.TEXT.rindex("René")):
            assert self.located("NFC", answer, number, "other_normal_form") == ("René", number)
            counted = len(unicodedata.normalize("NFD", self.TEXT[:number]))
            assert self.located("NFC", answer, counted, "other_normal_form") == ("René", number)

    def test_other_letters_are_not_found(self) -> None:
        with pytest.raises(RowError, match="the answer 'Malaga' is not in the context within"):
            cleaner()(
                make_row(context=self.TEXT, answers={"text": ["Malaga"], "answer_start": [18]})
            )
