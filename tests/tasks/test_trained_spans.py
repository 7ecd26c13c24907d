"""Spans of trained tokens, in the tokens and in the characters of their text."""

from collections.abc import Sequence

import pytest

from worker.tasks.trained_spans import spans_of

WORDS = ["The", " end", "é", " of", "\N{ROCKET}"]


def plain(ids: Sequence[int]) -> str:
    return "".join(WORDS[number] for number in ids)


def stripping(ids: Sequence[int]) -> str:
    """As decoders do that remove the blank of the first word."""
    return plain(ids).lstrip()


def bytes_of(ids: Sequence[int]) -> str:
    """As decoders of bytes do: a part of a character has no character."""
    return bytes(ids).decode("utf-8", "replace")


@pytest.mark.parametrize("decode", [plain, stripping])
def test_places_in_the_text(decode: object) -> None:
    ids = [1, 3, 2, 4, 3]
    spans = spans_of(ids, [False, True, True, False, True], decode)  # type: ignore[arg-type]
    text = decode(ids)  # type: ignore[operator]
    assert [(span.start, span.end) for span in spans] == [(1, 3), (4, 5)]
    shown = [text[span.text_start : span.text_end] for span in spans]
    assert shown == [" ofé", " of"]


def test_a_character_of_several_tokens_belongs_to_the_span_that_ends_it() -> None:
    ids = list("aé\N{ROCKET}b".encode())
    flags = [False, False, *[True] * 3, False, False, False]
    (span,) = spans_of(ids, flags, bytes_of)
    assert bytes_of(ids)[span.text_start : span.text_end] == "é"


def test_none_and_all() -> None:
    assert spans_of([0, 1], [False, False], plain) == []
    assert spans_of([], [], plain) == []
    (span,) = spans_of([0, 1], [True, True], plain)
    assert (span.start, span.end, span.text_start, span.text_end) == (0, 2, 0, 7)


def test_their_number_is_limited() -> None:
    flags = [number % 2 == 0 for number in range(2000)]
    assert len(spans_of([0] * 2000, flags, plain)) == 256
