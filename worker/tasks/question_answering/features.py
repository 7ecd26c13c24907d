"""Cuts questions and contexts into windows of tokens with labels and offsets."""

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from service.contract.failures import FailureCode, StageError
from service.contract.tasks.parameters import QuestionAnsweringSpec
from worker.data.report import Measures

Integers = npt.NDArray[np.int64]
NOT_CONTEXT = -1
_USUAL_QUESTION: Final = 64  # tokens
_MOST_WINDOW_TOKENS: Final = 2_000_000
"""Of all windows of one row; they take about 170 bytes each until they are written."""


class Windows:
    """Cuts contexts into overlapping windows of at most `max_seq_length` tokens.

    The question comes first if the tokenizer pads on the right, and last if it pads on the left.
    """

    def __init__(
        self,
        tokenizer: Any,
        parameters: QuestionAnsweringSpec,
        *,
        token_types: bool = False,
        measures: Measures | None = None,
    ) -> None:
        """`token_types`: request them even if the tokenizer does not return them by default."""
        self._measures = measures or Measures()
        self._measures.windows = Counter()
        self._tokenizer = tokenizer
        self.token_types = token_types or "token_type_ids" in tokenizer.model_input_names
        self._parameters = parameters
        self._question_first = tokenizer.padding_side == "right"
        self._max_question_length = self._question_limit()
        self.shortened = 0
        """How many questions were cut because they left no room for the context."""

    def features(
        self, examples: Mapping[str, Sequence[Any]], first_index: int, *, with_offsets: bool
    ) -> dict[str, list[Any]]:
        """The windows of a batch of examples as columns; `first_index`: index of the first example.

        `with_offsets` adds what evaluation needs: the example's index, the null token and each
        token's offsets in the context.
        """
        encoded = self._encode(examples, first_index)
        columns: dict[str, list[Any]] = {"input_ids": encoded["input_ids"]}
        if self.token_types:
            columns["token_type_ids"] = encoded["token_type_ids"]
        columns |= {"start_positions": [], "end_positions": []}
        if with_offsets:
            columns |= {"example": [], "null_token": [], "offset_start": [], "offset_end": []}
        sizes = _Sizes(self._parameters.doc_stride)
        for window, sample in enumerate(encoded["overflow_to_sample_mapping"]):
            offsets = self._context_offsets(encoded, window)
            sizes.add(sample, offsets)
            null = self._null_token(encoded["input_ids"][window])
            label = label_of(examples["answers"][sample], offsets, null)
            columns["start_positions"].append(label[0])
            columns["end_positions"].append(label[1])
            if with_offsets:
                columns["example"].append(first_index + sample)
                columns["null_token"].append(null)
                columns["offset_start"].append(offsets[:, 0])
                columns["offset_end"].append(offsets[:, 1])
        sizes.report_to(self._measures)
        return columns

    @property
    def growth(self) -> float:
        """How many times as many tokens the windows of a long context have as the context."""
        length, stride = self._parameters.max_seq_length, self._parameters.doc_stride
        return length / max(1, length - stride - _USUAL_QUESTION)

    def _encode(self, examples: Mapping[str, Sequence[Any]], first_index: int) -> Any:
        # Leading white space, which some questions have a lot of, would only waste tokens.
        questions = self._truncated([question.lstrip() for question in examples["question"]])
        contexts = list(examples["context"])
        for number, (question, context) in enumerate(zip(questions, contexts, strict=True)):
            self._check_windows(question, context, first_index + number)
        pair = (questions, contexts) if self._question_first else (contexts, questions)
        return self._tokenizer(
            *pair,
            truncation="only_second" if self._question_first else "only_first",
            max_length=self._parameters.max_seq_length,
            stride=self._parameters.doc_stride,
            padding=False,
            return_overflowing_tokens=True,
            return_offsets_mapping=True,
            return_attention_mask=False,
            return_token_type_ids=self.token_types,
        )

    def _check_windows(self, question: str, context: str, row: int) -> None:
        """StageError(data_too_large) for a row whose windows would fill the memory: next to a long
        question a window advances by a single token."""
        length, stride = self._parameters.max_seq_length, self._parameters.doc_stride
        if len(context) * length <= _MOST_WINDOW_TOKENS:  # a token has at least one character
            return
        specials = self._tokenizer.num_special_tokens_to_add(pair=True)
        advance = length - specials - self._count(question) - stride
        windows = self._count(context) // max(1, advance) + 1
        if windows * length > _MOST_WINDOW_TOKENS:
            raise StageError(
                FailureCode.DATA_TOO_LARGE,
                f"Row {row + 1:,} of the usable rows becomes {windows:,} windows of {length} "
                f"tokens: its question leaves {max(1, advance)} tokens of each window for new "
                f"context. At most {_MOST_WINDOW_TOKENS // length:,} windows are made of a row",
                action="Shorten the question or the context of the row, lower `task.doc_stride` or "
                "raise `task.max_seq_length`, then submit again.",
                row=row,
                windows=windows,
            )

    def _count(self, text: str) -> int:
        encoded = self._tokenizer(text, add_special_tokens=False, verbose=False)
        return len(encoded["input_ids"])

    def _context_offsets(self, encoded: Any, window: int) -> Integers:
        """(length, 2) character offsets in the context; NOT_CONTEXT for all other tokens."""
        offsets = np.asarray(encoded["offset_mapping"][window], dtype=np.int64).reshape(-1, 2)
        context = 1 if self._question_first else 0
        sequences = np.asarray(
            [-1 if number is None else number for number in encoded.sequence_ids(window)]
        )
        offsets[sequences != context] = NOT_CONTEXT
        return offsets

    def _null_token(self, input_ids: list[int]) -> int:
        """The index of the token that means "no answer": CLS, else BOS, else the first one."""
        for special in (self._tokenizer.cls_token_id, self._tokenizer.bos_token_id):
            if special is not None and special in input_ids:
                return input_ids.index(special)
        return 0

    def _question_limit(self) -> int:
        length, stride = self._parameters.max_seq_length, self._parameters.doc_stride
        specials = self._tokenizer.num_special_tokens_to_add(pair=True)
        # A window advances by its context tokens beyond the stride; it needs at least one.
        limit: int = length - specials - stride - 1
        if limit < 1:
            raise StageError(
                FailureCode.INVALID_OPTION,
                f"`max_seq_length` {length} leaves no room for a question: {specials} special "
                f"tokens and `doc_stride` {stride} are subtracted. Lower `doc_stride`.",
            )
        return limit

    def _truncated(self, questions: list[str]) -> list[str]:
        encoded = self._tokenizer(
            questions,
            add_special_tokens=False,
            truncation=False,
            padding=False,
            return_offsets_mapping=True,
            return_attention_mask=False,
            verbose=False,
        )
        for number, offsets in enumerate(encoded["offset_mapping"]):
            if len(offsets) > self._max_question_length:
                questions[number] = self._cut(questions[number], offsets)
                self.shortened += 1
                self._measures.tokens.truncated += 1
        return questions

    def _cut(self, question: str, offsets: list[tuple[int, int]]) -> str:
        # The shortened text may be split into more tokens than before: cut until it fits.
        for kept in range(self._max_question_length, 0, -1):
            text = question[: offsets[kept - 1][1]]
            if len(self._tokenizer.tokenize(text)) <= self._max_question_length:
                return text
        return ""


class _Sizes:
    """Counts the tokens and windows of whole examples."""

    def __init__(self, stride: int) -> None:
        self._stride = stride
        self._tokens: dict[int, int] = {}
        self._windows: Counter[int] = Counter()

    def add(self, sample: int, offsets: Integers) -> None:
        """Add a window of the example; all but its first one repeat `stride` tokens."""
        self._windows[sample] += 1
        if self._windows[sample] == 1:
            self._tokens[sample] = len(offsets)
        else:
            context = int((offsets[:, 0] != NOT_CONTEXT).sum())
            self._tokens[sample] += context - self._stride

    def report_to(self, measures: Measures) -> None:
        measures.tokens.add(self._tokens.values())
        measures.windows = (measures.windows or Counter()) + Counter(self._windows.values())


def label_of(answers: Mapping[str, Any], offsets: Integers, null: int) -> tuple[int, int]:
    """First and last token of the first answer; the null token twice if the window lacks it."""
    if not answers["answer_start"]:
        return null, null
    first = answers["answer_start"][0]
    last = first + len(answers["text"][0])  # exclusive
    tokens = np.flatnonzero(offsets[:, 0] != NOT_CONTEXT)
    if not len(tokens) or offsets[tokens[0], 0] > first or offsets[tokens[-1], 1] < last:
        return null, null
    start = tokens[np.searchsorted(offsets[tokens, 0], first, side="right") - 1]
    end = tokens[np.searchsorted(offsets[tokens, 1], last, side="left")]
    return int(start), int(end)
