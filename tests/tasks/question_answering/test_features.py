"""Golden values were read off the tokens by hand."""

from collections import Counter
from typing import Any

import pytest

from service.contract.failures import FailureCode
from service.contract.tasks.parameters import QuestionAnsweringSpec
from tests.training.support.jobs import fails_with
from worker.data.report import Measures
from worker.tasks.question_answering.features import Windows

CONTEXT = "The old book was written by Ada Lovelace in London, they say."
NO = -1


def example(**changes: Any) -> dict[str, list[Any]]:
    """A batch of one."""
    row = {
        "question": "  Who wrote it?",
        "context": CONTEXT,
        "answers": {"text": ["Ada Lovelace"], "answer_start": [28]},
    }
    return {name: [value] for name, value in (row | changes).items()}


def windows(
    tokenizer: Any, *, length: int = 16, stride: int = 3, first: int = 7, **changes: Any
) -> dict[str, list[Any]]:
    spec = QuestionAnsweringSpec(max_seq_length=length, doc_stride=stride)
    return Windows(tokenizer, spec).features(example(**changes), first, with_offsets=True)


def tokens(tokenizer: Any, columns: dict[str, list[Any]]) -> list[str]:
    return [" ".join(tokenizer.convert_ids_to_tokens(ids)) for ids in columns["input_ids"]]


class TestQuestionFirst:
    def test_windows_overlap_and_carry_labels_and_offsets(self, minilm: Any) -> None:
        columns = windows(minilm)
        assert tokens(minilm, columns) == [
            "[CLS] who wrote it ? [SEP] the old book was written by ada love ##lace [SEP]",
            "[CLS] who wrote it ? [SEP] ada love ##lace in london , they say . [SEP]",
        ]
        assert columns["token_type_ids"] == [[0] * 6 + [1] * 10] * 2
        assert columns["start_positions"] == [12, 6]
        assert columns["end_positions"] == [14, 8]
        assert columns["example"] == [7, 7]
        assert columns["null_token"] == [0, 0]
        starts = [NO] * 6 + [28, 32, 36, 41, 44, 50, 52, 57, 60, NO]
        assert columns["offset_start"][1].tolist() == starts
        ends = [NO] * 6 + [31, 36, 40, 43, 50, 51, 56, 60, 61, NO]
        assert columns["offset_end"][1].tolist() == ends

    def test_of_no_example_none_are_counted(self, minilm: Any) -> None:
        """Other kinds of features leave out the number of windows."""
        measures = Measures()
        assert measures.windows is None
        Windows(minilm, QuestionAnsweringSpec(), measures=measures)
        assert measures.windows == Counter()

    def test_an_answer_outside_or_cut_by_the_window_is_the_null_token(self, minilm: Any) -> None:
        columns = windows(
            minilm, answers={"text": ["Ada Lovelace in London"], "answer_start": [28]}
        )
        assert columns["start_positions"] == [0, 6]
        assert columns["end_positions"] == [0, 10]

    def test_an_answer_in_the_last_token_stays_inside_the_context(self, minilm: Any) -> None:
        columns = windows(minilm, length=32, answers={"text": ["."], "answer_start": [60]})
        assert (columns["start_positions"], columns["end_positions"]) == ([20], [20])

    def test_only_the_first_of_several_answers_is_a_label(self, minilm: Any) -> None:
        answers = {"text": ["London", "Ada Lovelace"], "answer_start": [44, 28]}
        columns = windows(minilm, length=32, answers=answers)
        assert (columns["start_positions"], columns["end_positions"]) == ([16], [16])

    def test_an_impossible_question_is_the_null_token_in_every_window(self, minilm: Any) -> None:
        columns = windows(minilm, answers={"text": [], "answer_start": []})
        assert (columns["start_positions"], columns["end_positions"]) == ([0, 0], [0, 0])

    def test_training_features_hold_no_offsets(self, minilm: Any) -> None:
        spec = QuestionAnsweringSpec(max_seq_length=16, doc_stride=3)
        columns = Windows(minilm, spec).features(example(), 0, with_offsets=False)
        names = {"input_ids", "token_type_ids", "start_positions", "end_positions"}
        assert set(columns) == names


class TestQuestionLast:
    def test_a_tokenizer_that_pads_on_the_left(self, minilm_left: Any) -> None:
        columns = windows(minilm_left)
        assert tokens(minilm_left, columns) == [
            "[CLS] the old book was written by ada love ##lace [SEP] who wrote it ? [SEP]",
            "[CLS] ada love ##lace in london , they say . [SEP] who wrote it ? [SEP]",
        ]
        assert columns["start_positions"] == [7, 1]
        assert columns["end_positions"] == [9, 3]
        assert columns["offset_start"][1].tolist()[:3] == [NO, 28, 32]
        assert columns["offset_start"][1].tolist()[10:] == [NO] * 6


class TestRoberta:
    def test_two_separators_no_token_types_and_multi_byte_characters(self, roberta: Any) -> None:
        columns = windows(
            roberta,
            length=64,
            question="q",
            context="a café b",
            answers={"text": ["café"], "answer_start": [2]},
        )
        assert "token_type_ids" not in columns
        assert tokens(roberta, columns) == ["<s> q </s> </s> a Ġ c a f Ã © Ġ b </s>"]
        first, last = columns["start_positions"][0], columns["end_positions"][0]
        start, end = columns["offset_start"][0][first], columns["offset_end"][0][last]
        assert "a café b"[start:end] == "café"


class TestNullToken:
    def test_bos_without_cls_and_the_first_token_without_both(self, roberta: Any) -> None:
        spec = QuestionAnsweringSpec(max_seq_length=64, doc_stride=3)
        cut = Windows(roberta, spec)
        ids = [9, roberta.bos_token_id, 9]
        assert cut._null_token(ids) == 1
        assert cut._null_token([9, 9]) == 0


class TestLongQuestions:
    def test_are_cut_so_that_context_remains_and_counted(self, minilm: Any) -> None:
        spec = QuestionAnsweringSpec(max_seq_length=16, doc_stride=3)
        cut = Windows(minilm, spec)
        columns = cut.features(example(question="who " * 50), 0, with_offsets=True)
        assert cut.shortened == 1
        # 16 - 3 special tokens - 3 of the stride - 1 new one
        assert all(ids.count(minilm.vocab["who"]) == 9 for ids in columns["input_ids"])
        assert max(map(len, columns["input_ids"])) == 16

    @pytest.mark.parametrize(("count", "left", "shortened"), [(9, 9, 0), (10, 9, 1)])
    def test_one_token_too_many(self, minilm: Any, count: int, left: int, shortened: int) -> None:
        cut = Windows(minilm, QuestionAnsweringSpec(max_seq_length=16, doc_stride=3))
        columns = cut.features(example(question="who " * count), 0, with_offsets=True)
        assert cut.shortened == shortened
        assert all(ids.count(minilm.vocab["who"]) == left for ids in columns["input_ids"])

    @pytest.mark.parametrize("fits", [8, 7, 1, 0])
    def test_are_cut_on_where_the_cut_text_splits_anew(
        self, minilm: Any, monkeypatch: pytest.MonkeyPatch, fits: int
    ) -> None:
        """Into more tokens than it had within the whole question."""
        cut = Windows(minilm, QuestionAnsweringSpec(max_seq_length=16, doc_stride=3))

        def tokenize(text: str) -> list[str]:
            words = text.split()
            return words if len(words) <= fits else words * 10

        monkeypatch.setattr(cut._tokenizer, "tokenize", tokenize)
        columns = cut.features(example(question="who " * 12), 0, with_offsets=True)
        assert all(ids.count(minilm.vocab["who"]) == fits for ids in columns["input_ids"])

    def test_room_for_one_token_is_enough(self, minilm: Any) -> None:
        """Of 16: three specials, eleven of the stride, one of the context, one of the question."""
        columns = windows(minilm, stride=11)
        assert tokens(minilm, columns)[0].startswith("[CLS] who [SEP] the old book was")
        assert {len(ids) for ids in columns["input_ids"]} == {16}

    def test_a_stride_that_leaves_no_room_is_refused(self, minilm: Any) -> None:
        with fails_with(FailureCode.INVALID_OPTION, "Lower `doc_stride`"):
            Windows(minilm, QuestionAnsweringSpec(max_seq_length=16, doc_stride=12))


class TestManyWindows:
    def test_a_small_cell_that_becomes_gigabytes_is_refused(self, minilm: Any) -> None:
        """Each window has one new token: 20 kB of text would be 20,000 windows."""
        cut = Windows(minilm, QuestionAnsweringSpec(max_seq_length=384, doc_stride=128))
        rows = example(question="who " * 300, context="." * 20_000)
        with fails_with(
            FailureCode.DATA_TOO_LARGE, r"^Row 8 of the usable rows becomes 20,001"
        ) as caught:
            cut.features(rows, 7, with_offsets=True)
        assert caught.value.failure.details == {"row": 7, "windows": 20_001}

    def test_a_long_context_with_a_usual_question_is_not(self, minilm: Any) -> None:
        cut = Windows(minilm, QuestionAnsweringSpec(max_seq_length=384, doc_stride=128))
        made = cut.features(example(context="." * 20_000), 0, with_offsets=True)
        assert 80 <= len(made["input_ids"]) <= 85


class TestMeasures:
    @pytest.mark.parametrize("side", ["right", "left"])
    def test_lengths_are_those_of_whole_examples(
        self, minilm: Any, minilm_left: Any, side: str
    ) -> None:
        tokenizer = minilm if side == "right" else minilm_left
        contexts = ["short", "one two three four five six seven " * 5, "word " * 23]
        rows: dict[str, list[Any]] = {
            "question": ["Who?"] * 3,
            "context": contexts,
            "answers": [{"text": [], "answer_start": []}] * 3,
        }
        windows = Windows(
            tokenizer, QuestionAnsweringSpec(max_seq_length=16, doc_stride=4), measures=Measures()
        )
        made = windows.features(rows, 0, with_offsets=True)
        found = windows._measures.summary()
        whole = [len(tokenizer("Who?", context)["input_ids"]) for context in contexts]
        assert found["tokens"]["total"] == sum(whole)
        assert (found["tokens"]["min"], found["tokens"]["max"]) == (min(whole), max(whole))
        counts = Counter(Counter(made["example"]).values())
        assert found["windows_per_example"] == {str(n): rows for n, rows in sorted(counts.items())}
        assert max(counts) > 2
        windows.features(rows, 3, with_offsets=True)
        twice = windows._measures.summary()
        assert twice["tokens"]["total"] == 2 * sum(whole)
        assert twice["windows_per_example"] == {str(n): 2 * rows for n, rows in counts.items()}
