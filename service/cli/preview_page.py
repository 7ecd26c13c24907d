"""A preview for people: the trained tokens are highlighted, or in brackets where there are no
colours."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from rich.console import Console
from rich.text import Text

from service import escaping
from service.cli import data_preview, output
from service.cli.client import Json

_BAR: Final = 30
"""Characters of the longest bar."""
_TRAINED: Final = "black on green"
_OPEN, _CLOSE = "[[", "]]"
_SHOWN_CHARACTERS: Final = 4000
_SHOWN_TOKENS: Final = 64
_BEFORE: Final = 8
"""Of these before the first trained one, if that comes late."""
Run = tuple[str, bool]
"""A part of a text, and whether it is trained."""


def show(console: Console, preview: Json) -> None:
    """All of it; a failure on stderr."""
    failure = preview["failure"]
    if preview["result"] is None:
        output.complain(f"there is no preview ({failure['code']}): {failure['message']}")
        output.note(f"What to do: {failure['action']}")
        return
    _show_findings(console, preview["result"])
    if failure is not None:
        data_preview.show_failure(failure)


def _show_findings(console: Console, found: Json) -> None:
    output.print_lines(data_preview.summary(found))
    for name, split in found["splits"].items():
        output.print_lines(_histogram(name, split.get("tokens")))
    output.print_lines(data_preview.notices(found))
    has_colours = console.is_terminal and not console.no_color
    if has_colours and any(example["trained"] for example in found["examples"]):
        console.print(Text("\nhighlighted: trained", style=_TRAINED))
    for number, example in enumerate(found["examples"], start=1):
        output.print_lines(["", data_preview.heading(number, example)])
        _show_example(console, example, has_colours=has_colours)


def _histogram(name: str, lengths: Json | None) -> Iterator[str]:
    if lengths is None:
        return
    bins = lengths["histogram"]
    most = max(each["rows"] for each in bins)
    width = len(f"{bins[-1]['to']:,}")
    yield f"tokens of the {name} rows:"
    for each in bins:
        bar = "█" * -(-each["rows"] * _BAR // most)
        span = f"{each['from']:>{width},} to {each['to']:>{width},}"
        yield f"  {span} {each['rows']:>7,} {bar}".rstrip()


def _show_example(console: Console, example: Json, *, has_colours: bool) -> None:
    if isinstance(example["target"], list):  # a label for each token
        output.print_line(data_preview.labels(example))
        return
    for name, runs in (("text", _of_text(example)), ("tokens", _of_tokens(example))):
        line = Text(f"  {name}: ")
        for part, is_trained in runs:
            line.append_text(_styled(part, is_trained=is_trained, has_colours=has_colours))
        console.print(line)
    output.print_line(f"  target: {data_preview.shortened(example['target'])}")


def _styled(part: str, *, is_trained: bool, has_colours: bool) -> Text:
    shown = escaping.terminal(part)
    if not is_trained:
        return Text(shown)
    return Text(shown, style=_TRAINED) if has_colours else Text(f"{_OPEN}{shown}{_CLOSE}")


def _of_text(example: Json) -> Iterator[Run]:
    """The text in runs that are trained or not, so many characters of it."""
    text = example["text"]
    spans = [(span["text_start"], span["text_end"]) for span in example["trained"] or ()]
    for begin, end, is_trained in _runs(min(len(text), _SHOWN_CHARACTERS), spans):
        yield text[begin:end], is_trained
    if len(text) > _SHOWN_CHARACTERS:
        yield "…", False


def _of_tokens(example: Json) -> Iterator[Run]:
    """Some tokens, with bars between them: the first ones, or those where the training begins."""
    tokens = example["tokens"]
    spans = [(span["start"], span["end"]) for span in example["trained"] or ()]
    first = spans[0][0] - _BEFORE if spans and spans[0][0] > _SHOWN_TOKENS // 2 else 0
    last = min(len(tokens), first + _SHOWN_TOKENS)
    if first:
        yield f"{first:,} others … ", False
    for begin, end, is_trained in _runs(len(tokens), spans):
        part = tokens[max(begin, first) : min(end, last)]
        if part:
            yield ("|" if begin > first else ""), False
            yield "|".join(map(escaping.line, part)), is_trained
    if example["length"] > last:
        yield f" … {example['length'] - last:,} more", False


def _runs(length: int, spans: list[tuple[int, int]]) -> Iterator[tuple[int, int, bool]]:
    """All of `range(length)`, (begin, end, whether it is in one of the ascending spans)."""
    bounds = sorted({0, length, *(min(bound, length) for span in spans for bound in span)})
    begins = {begin for begin, end in spans if begin < end}
    for begin, end in pairwise(bounds):
        yield begin, end, begin in begins
