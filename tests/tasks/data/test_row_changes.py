"""The sentences about rows that are used otherwise than they are written."""

from worker.data.cleaning import Tally
from worker.tasks import row_changes


def test_each_count_has_its_sentence() -> None:
    tallies = {
        "train": Tally(used=1200, changes={"realigned": 3, "repeated_prompt": 1100}),
        "validation": Tally(used=4, changes={"other_normal_form": 2, "marked_unanswerable": 1}),
    }
    notices = list(row_changes.notices(tallies))
    assert [notice.message for notice in notices] == [
        "In 1,100 of 1,200 rows of the train split the answers begin with the row's own prompt, so "
        "that it is there twice: remove it from the answers, or remove the column `prompt`",
        "2 answers of the validation split and their contexts are written in different Unicode "
        "normal forms (NFC and NFD): the answers are used as the contexts have them",
        "1 rows of the validation split have an empty answer at -1: they are read as questions "
        "without an answer (`{text: [], answer_start: []}`)",
    ]
    assert notices[0].data == {"split": "train", "repeated_prompt": 1100}
