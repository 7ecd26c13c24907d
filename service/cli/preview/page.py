"""A preview for people: the trained tokens are highlighted, or in brackets where there are no
colours."""

from collections.abc import Iterator
from itertools import pairwise
from typing import Final

from rich.console import Console
from rich.text import Text

from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.contract.failures import RULES, FailureCode
from service.contract.interactive.previews import MOST_ROWS
from service.system import escaping

_BAR: Final = 30
"""Characters of the longest bar."""
_TRAINED: Final = "black on green"
_OPEN, _CLOSE = "[[", "]]"
_SHOWN_CHARACTERS: Final = 4000
_SHOWN_TOKENS: Final = 64
_SHOWN_LABELS: Final = 20
_SHOWN_TARGET: Final = 400
_MANY_UNKNOWN: Final = 0.02
_BEFORE: Final = 8
"""Of them, those before the first trained one, if that comes late."""
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
        _show_failure(failure)


def _show_findings(console: Console, found: Json) -> None:
    output.print_lines(_summary(found))
    for name, split in found["splits"].items():
        output.print_lines(_histogram(name, split.get("tokens")))
    output.print_lines(f"notice: {escaping.line(notice)}" for notice in found["notices"])
    has_colours = console.is_terminal and not console.no_color
    if has_colours and any(example["trained"] for example in found["examples"]):
        console.print(Text("\nhighlighted: trained", style=_TRAINED))
    for number, example in enumerate(found["examples"], start=1):
        split, length = example["split"], example["length"]
        output.print_lines(["", f"Example {number} of the {split} split, {length:,} tokens"])
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
        output.print_line(_labels(example))
        return
    for name, runs in (("text", _of_text(example)), ("tokens", _of_tokens(example))):
        line = Text(f"  {name}: ")
        for part, is_trained in runs:
            line.append_text(_styled(part, is_trained=is_trained, has_colours=has_colours))
        console.print(line)
    target = escaping.line(example["target"][:_SHOWN_TARGET])
    more = "…" if len(example["target"]) > _SHOWN_TARGET else ""
    output.print_line(f"  target: {target}{more}")


def _styled(part: str, *, is_trained: bool, has_colours: bool) -> Text:
    shown = escaping.terminal(part)
    if not is_trained:
        return Text(shown)
    return Text(shown, style=_TRAINED) if has_colours else Text(f"{_OPEN}{shown}{_CLOSE}")


def _of_text(example: Json) -> Iterator[Run]:
    """The text in runs that are trained or not, this many characters of it."""
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


def _summary(found: Json) -> Iterator[str]:
    """What applies to all rows."""
    for name, split in found["splits"].items():
        yield from _split(name, split, found)
    yield from _epoch(found)
    unknown = found["unknown_tokens"] or 0
    if unknown >= _MANY_UNKNOWN:
        yield (
            f"{unknown:.0%} of the tokens are unknown to the tokenizer: a model of this language "
            "or of this kind of text will learn more"
        )


def _epoch(found: Json) -> Iterator[str]:
    epoch = found["epoch"]
    if epoch is None:
        return
    trained = epoch["trained_tokens"]
    of_tokens = "" if trained is None else f"{trained:,} trained tokens, "
    yield (
        f"an epoch: {'' if epoch['is_exact'] else 'about '}{epoch['rows']:,} rows, {of_tokens}"
        f"{epoch['features']:,} features in {epoch['batches']:,} batches, "
        f"{epoch['optimizer_steps']:,} optimizer steps; {epoch['total_steps']:,} steps in all"
    )


def _split(name: str, split: Json, found: Json) -> Iterator[str]:
    limit = found["rows_limit"]
    advice = "; --rows reads more" if limit < MOST_ROWS else ""
    more = f" (the limit{advice})" if split["rows_read"] >= limit else ""
    yield (
        f"{name}: {split['rows_read']:,} rows read{more}, {split['rows_usable']:,} usable, "
        f"{split['rows_bad']:,} bad"
    )
    if split.get("realigned"):
        yield f"  {split['realigned']:,} answers realigned"
    for row in split["bad_rows"]:
        yield f"  {row['place']}: {row['problem']} ({row['reason']})"
    if split["rows_bad"] > len(split["bad_rows"]):
        reasons = ", ".join(f"{reason} {n:,}" for reason, n in split["bad_by_reason"].items())
        yield f"  … of all bad rows: {reasons}"
    longest = f"{found['max_length']}" + (
        f" (`task.{found['length_option']}`)" if found["length_option"] else ""
    )
    yield from _lengths("tokens", split.get("tokens"), split.get("truncated"), longest)
    yield from _lengths("target tokens", split.get("target_tokens"), split.get("targets_truncated"))
    if split.get("labels"):
        yield f"  labels: {_counted(split['labels'])}"
    if split.get("features") is not None:
        windows = split.get("windows_per_example")
        several = sum(rows for number, rows in (windows or {}).items() if int(number) > 1)
        trained = split.get("trained_tokens")
        yield (
            f"  {split['features']:,} features"
            + (f", {trained:,} trained tokens" if trained is not None else "")
            + (f"; {several:,} rows make more than one window" if several else "")
        )


def _counted(labels: dict[str, int]) -> str:
    shown = [f"{escaping.line(name)} {n:,}" for name, n in list(labels.items())[:_SHOWN_LABELS]]
    more = f", … {len(labels) - _SHOWN_LABELS} more" if len(labels) > _SHOWN_LABELS else ""
    return ", ".join(shown) + more


def _lengths(
    what: str, lengths: Json | None, truncated: int | None, limit: str | None = None
) -> Iterator[str]:
    if lengths is None:
        return
    cut = f"; {truncated or 0:,} truncated" + (f" at {limit}" if limit else "")
    yield (
        f"  {what} per row: p50 {lengths['p50']:,}, p95 {lengths['p95']:,}, "
        f"max {lengths['max']:,}{cut}"
    )


def _labels(example: Json) -> str:
    pairs = zip(example["tokens"], example["target"], strict=True)
    shown = [token if label is None else f"{token}/{label}" for token, label in pairs]
    more = f" … {len(shown) - _SHOWN_TOKENS:,} more" if len(shown) > _SHOWN_TOKENS else ""
    return f"  tokens/labels: {' | '.join(map(escaping.line, shown[:_SHOWN_TOKENS]))}{more}"


def _show_failure(failure: Json) -> None:
    """What the job's page would say; what may pass says nothing about the rows."""
    reason = f"({failure['code']}): {failure['message']}"
    if RULES[FailureCode(failure["code"])].retryable:
        output.complain(f"the data could not be checked here {reason}")
        output.note("Try again. A job would be retried by itself.")
    else:
        output.complain(f"a job would fail with this data {reason}")
        output.note(f"What to do: {failure['action']}")
