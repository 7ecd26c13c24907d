"""Neighbouring trained tokens as spans, of the tokens and of the text that they decode to."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import groupby, pairwise
from typing import Final

from service.contract.interactive.previews import TrainedSpan

Decode = Callable[[Sequence[int]], str]
_MOST: Final = 256
"""Spans of one example that are shown: where decoders are particular, each costs a decoding."""


def spans_of(ids: Sequence[int], flags: Sequence[bool], decode: Decode) -> list[TrainedSpan]:
    """The runs of true `flags`, with their places in `decode(ids)`."""
    found = list(_runs(flags))[:_MOST]
    bounds = sorted({0, len(ids), *(bound for run in found for bound in run)})
    places = _places(ids, bounds, decode)
    return [
        TrainedSpan(start=start, end=end, text_start=places[start], text_end=places[end])
        for start, end in found
    ]


def _runs(flags: Iterable[bool]) -> Iterator[tuple[int, int]]:
    begin = 0
    for value, run in groupby(flags, bool):
        end = begin + sum(1 for _ in run)
        if value:
            yield begin, end
        begin = end


def _places(ids: Sequence[int], bounds: Sequence[int], decode: Decode) -> dict[int, int]:
    """Bound between two tokens → bound between two characters of the whole text."""
    text = decode(ids)
    parts = [decode(ids[begin:end]) for begin, end in pairwise(bounds)]
    if "".join(parts) == text:
        sizes = [0]
        for part in parts:
            sizes.append(sizes[-1] + len(part))
        return dict(zip(bounds, sizes, strict=False))
    # Some decoders treat the first token in another way, or a character spans two tokens: then the
    # text before a bound is what the whole text and the tokens before it have in common.
    return {bound: _common(text, decode(ids[:bound])) for bound in bounds}


def _common(text: str, begin: str) -> int:
    """How many characters both begin with."""
    pairs = enumerate(zip(text, begin, strict=False))
    return next((place for place, (a, b) in pairs if a != b), min(len(text), len(begin)))
