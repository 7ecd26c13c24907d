"""How many rows have each label, and which labels have too few of them."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from service.contract.stage.events import Notice

_SHOWN: Final = 20
"""Labels in a message."""
_KEPT: Final = 100
"""Labels in the data of a notice; each has up to `_LONGEST` characters."""
_LONGEST: Final = 200


def listed(names: Sequence[str], counted: Mapping[str, int]) -> str:
    """`good 160, bad 140`"""
    shown = ", ".join(f"{name:.80} {counted.get(name, 0):,}" for name in names[:_SHOWN])
    return shown + _more(names)


def of_training(names: Sequence[str], counted: Mapping[str, int], rows: str) -> Iterator[Notice]:
    """What is wrong with the numbers in `counted` (label → rows). `rows`: which rows these are,
    such as `the rows of the train split`."""
    if absent := [name for name in names if not counted.get(name)]:
        it = "them" if absent[1:] else "it"
        yield Notice(
            message=f"None of {rows} has {_labels(absent, 'or')}, so the model does not learn "
            f"{it}: add rows that have {it}, or train without {it}",
            data={"labels_without_rows": _kept(absent)},
        )
    if single := [name for name in names if counted.get(name) == 1]:
        yield Notice(
            message=f"Only one of {rows} has {_labels(single, 'and one')}: that teaches little",
            data={"labels_with_one_row": _kept(single)},
        )


def of_validation(
    names: Sequence[str],
    counted: Mapping[str, int],
    rows: str,
    train: Mapping[str, int] | None,
    train_rows: str,
) -> Iterator[Notice]:
    """As `of_training`, after what was counted. `train`: the same of `train_rows`, None in a job
    that does not train."""
    yield how_many(names, counted, rows)
    unlearnt = [] if train is None else [n for n in names if counted.get(n) and not train.get(n)]
    if unlearnt:
        number = sum(counted[name] for name in unlearnt)
        yield Notice(
            message=f"{number:,} of {rows} {'has' if number == 1 else 'have'} "
            f"{_labels(unlearnt, 'or')}, which none of {train_rows} has: to the metrics they are "
            "rows that the model gets wrong",
            data={"labels_not_trained": _kept(unlearnt)},
        )


def how_many(names: Sequence[str], counted: Mapping[str, int], rows: str) -> Notice:
    numbers = {name[:_LONGEST]: counted.get(name, 0) for name in names[:_KEPT]}
    message = f"Of {rows} so many have each label: {listed(names, counted)}"
    return Notice(message=message, data={"rows_of_labels": numbers})


def _labels(names: Sequence[str], conjunction: str) -> str:
    quoted = [f"{name[:80]!r}" for name in names[:_SHOWN]]
    if _more(names) or not quoted[1:]:
        return f"the label {', '.join(quoted)}{_more(names)}"
    return f"the label {', '.join(quoted[:-1])} {conjunction} {quoted[-1]}"


def _more(names: Sequence[str]) -> str:
    return f" and {len(names) - _SHOWN:,} more" if len(names) > _SHOWN else ""


def _kept(names: Sequence[str]) -> list[str]:
    return [name[:_LONGEST] for name in names[:_KEPT]]
