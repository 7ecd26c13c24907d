"""The best score so far, trial by trial, as a line of characters with axes."""

from collections.abc import Iterator, Mapping, Sequence
from itertools import pairwise

from service import units

_FEWEST_COLUMNS = 10
_AXIS = " ┤"
Point = tuple[int, float]


def best_so_far(scores: Mapping[int, float], *, maximize: bool) -> list[Point]:
    """The first trial, and each that was better than all before it: number and score."""
    points: list[Point] = []
    for number, score in sorted(scores.items()):
        if not points or (score > points[-1][1] if maximize else score < points[-1][1]):
            points.append((number, score))
    return points


def drawn(points: Sequence[Point], last: int, width: int, height: int) -> list[str]:
    """Lines of at most `width` characters: `height` of them for the curve, then the axis with the
    numbers of the trials, of which `last` is the highest. Nothing where there is no room."""
    if not points or height < 1:
        return []
    low, high = sorted((points[0][1], points[-1][1]))
    labels = [units.number(value, 4) for value in _levels(low, high, height)]
    margin = max(map(len, labels))
    columns = width - margin - len(_AXIS)
    if columns < _FEWEST_COLUMNS:
        return []
    rows = _rows(points, last, columns, height, low, high)
    return [
        *(
            f"{label:>{margin}}{_AXIS}{''.join(row)}".rstrip()
            for label, row in zip(labels, rows, strict=True)
        ),
        f"{'':>{margin}} └{'─' * columns}",
        f"{'':>{margin}}  {_trial_axis(points[0][0], last, columns)}",
    ]


def _levels(low: float, high: float, height: int) -> Iterator[float]:
    """The value of each row, from the top."""
    for row in range(height):
        yield high - (high - low) * row / max(1, height - 1)


def _trial_axis(first: int, last: int, columns: int) -> str:
    left, right = f"{first:,}", f"trial {last:,}"
    return f"{left}{right:>{columns - len(left)}}"


def _rows(
    points: Sequence[Point], last: int, columns: int, height: int, low: float, high: float
) -> list[list[str]]:
    canvas = [[" "] * columns for _ in range(height)]
    at = [_row(value, low, high, height) for value in _sampled(points, last, columns)]
    canvas[at[0]][0] = "─"
    for column, (before, now) in enumerate(pairwise(at), start=1):
        _join(canvas, column, before, now)
    return canvas


def _sampled(points: Sequence[Point], last: int, columns: int) -> list[float]:
    """The best score at the trial of each column."""
    first = points[0][0]
    values, known = [], 0
    for column in range(columns):
        trial = first + (last - first) * column / max(1, columns - 1)
        while known + 1 < len(points) and points[known + 1][0] <= trial:
            known += 1
        values.append(points[known][1])
    return values


def _row(value: float, low: float, high: float, height: int) -> int:
    share = 1.0 if high == low else (value - low) / (high - low)
    return round((1 - share) * (height - 1))


def _join(canvas: list[list[str]], column: int, before: int, now: int) -> None:
    """Draw one column: a line, or a step from the row before to the row now."""
    if before == now:
        canvas[now][column] = "─"
        return
    is_up = now < before
    canvas[before][column] = "╯" if is_up else "╮"
    canvas[now][column] = "╭" if is_up else "╰"
    for between in range(min(before, now) + 1, max(before, now)):
        canvas[between][column] = "│"
