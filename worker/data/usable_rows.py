"""Whether a job can use its rows, and the failure that explains why not."""

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from service.contract.failures import FailureCode, StageError
from worker.data.cleaning import SHOWN, BadRow, Tally

_IN_MESSAGE: Final = 5
"""Bad rows that the message lists."""


@dataclass(frozen=True)
class Split:
    """A split whose rows were checked."""

    name: str
    tally: Tally
    tables: Sequence[str]
    """The user's names of its tables."""


@dataclass(frozen=True)
class Policy:
    """`dataset.on_bad_row` and `dataset.max_bad_fraction`."""

    skips: bool
    max_bad_fraction: float

    def problem(self, splits: Sequence[Split]) -> StageError | None:
        """Why a job cannot use `splits`, with the bad rows of all of them."""
        for split in splits:
            if (error := self._empty(split)) is not None:
                return error
        faulty = [split for split in splits if self._is_faulty(split.tally)]
        return self._bad_rows(faulty) if faulty else None

    def _is_faulty(self, tally: Tally) -> bool:
        return tally.bad > (self.max_bad_fraction * tally.read if self.skips else 0)

    def _empty(self, split: Split) -> StageError | None:
        tally = split.tally
        if tally.read == 0:
            message = f"The {split.name} split has no rows"
        elif tally.used == 0 and not self._is_faulty(tally):
            message = f"All {tally.read:,} rows of the {split.name} split were skipped"
        else:
            return None
        return StageError(FailureCode.EMPTY_DATASET, message, split=split.name)

    def _bad_rows(self, splits: Sequence[Split]) -> StageError:
        reasons: Counter[str] = Counter()
        for split in splits:
            reasons.update(split.tally.reasons)
        first = splits[0]
        return StageError(
            _code(splits),
            self._message(splits),
            action=self._action(splits),
            split=first.name,
            place=place_of(first.tally.bad_rows[0], first.tables),
            rows_bad=sum(split.tally.bad for split in splits),
            rows_read=sum(split.tally.read for split in splits),
            bad_by_reason=_most_first(reasons),
            **_by_check(splits),
            bad_rows=[
                {"split": split.name, **_shown(row, split.tables)}
                for split, row in first_bad(splits, SHOWN)
            ],
            splits={
                split.name: {
                    "rows_bad": split.tally.bad,
                    "rows_read": split.tally.read,
                    "bad_by_reason": by_reason(split.tally),
                }
                for split in splits
            },
        )

    def _message(self, splits: Sequence[Split]) -> str:
        shown = first_bad(splits, _IN_MESSAGE)
        rows = "; ".join(sentence(row, split.tables) for split, row in shown)
        bad = sum(split.tally.bad for split in splits)
        if bad == 1 and not self.skips:
            return rows
        counted = "; ".join(map(self._counted, splits))
        return f"{counted}. {rows if bad == len(shown) else f'The first: {rows}'}"

    def _action(self, splits: Sequence[Split]) -> str | None:
        """None: what the code prescribes, which names an option instead of rows."""
        code = _code(splits)
        rows = _rows_to_fix(splits)
        if code is FailureCode.LABEL_MISMATCH:
            fix = f"Correct the labels of {rows}, or list all labels in `task.label_names`"
        elif code is FailureCode.UNREADABLE_ROW:
            fix = f"Fix or remove {rows}"
        else:
            return None
        skip = (
            "raise `dataset.max_bad_fraction`"
            if self.skips
            else "leave such rows out with `dataset.on_bad_row: skip`"
        )
        return f"{fix}, then submit again; or {skip}."

    def _counted(self, split: Split) -> str:
        tally = split.tally
        reasons = ", ".join(f"{name} {count:,}" for name, count in by_reason(tally).items())
        text = f"{tally.bad:,} of {tally.read:,} rows of the {split.name} split cannot be used "
        text += f"({reasons})"
        if not self.skips:
            return text
        allowed = f"`dataset.max_bad_fraction` allows {self.max_bad_fraction:.2%}"
        return f"{text}: {tally.bad / tally.read:.2%} of them, and {allowed}"


def place_of(row: BadRow, tables: Sequence[str]) -> str:
    """The place for the user, such as `train.jsonl, line 3`."""
    name = tables[row.table] if row.table < len(tables) else ""
    return f"{name}, {row.place}" if name else row.place


def sentence(row: BadRow, tables: Sequence[str]) -> str:
    """Where the row is, what is wrong with it, and OpenAI's name for that if it has one."""
    check = f" ({row.check})" if row.check else ""
    return f"{place_of(row, tables)}: {row.problem}{check}"


def listed(tally: Tally, tables: Sequence[str]) -> list[dict[str, str]]:
    """The first bad rows, each with its place, reason and problem, and `check` if it has one."""
    return [_shown(row, tables) for row in tally.bad_rows]


def by_reason(tally: Tally) -> dict[str, int]:
    """The most frequent first, then in alphabetical order."""
    return _most_first(tally.reasons)


def _most_first(reasons: Mapping[str, int]) -> dict[str, int]:
    return dict(sorted(reasons.items(), key=lambda item: (-item[1], item[0])))


def _shown(row: BadRow, tables: Sequence[str]) -> dict[str, str]:
    shown = {"place": place_of(row, tables), "reason": row.reason, "problem": row.problem}
    return shown if row.check is None else {**shown, "check": row.check}


def _by_check(splits: Sequence[Split]) -> dict[str, dict[str, int]]:
    """Nothing if no row fails a check that OpenAI names."""
    checks: Counter[str] = Counter()
    for split in splits:
        checks.update(split.tally.checks)
    return {"bad_by_check": _most_first(checks)} if checks else {}


def _code(splits: Sequence[Split]) -> FailureCode:
    """The failure code that all bad rows have in common, else the general one."""
    codes = {code for split in splits for code in split.tally.codes}
    return codes.pop() if len(codes) == 1 else FailureCode.UNREADABLE_ROW


def _rows_to_fix(splits: Sequence[Split]) -> str:
    """`line 2 of broken.jsonl (train)`, or how many they are."""
    bad = sum(split.tally.bad for split in splits)
    listed = first_bad(splits, SHOWN)
    if bad > 1:
        shown = "they are" if len(listed) == bad else f"the first {len(listed):,} are"
        return f"the {bad:,} bad rows ({shown} listed)"
    split, row = listed[0]
    table = split.tables[row.table] if row.table < len(split.tables) else ""
    return f"{row.place}{f' of {table}' if table else ''} ({split.name})"


def first_bad(splits: Sequence[Split], limit: int) -> list[tuple[Split, BadRow]]:
    """The first bad rows of each split: up to `limit` in total, divided evenly."""
    shares = _shares([len(split.tally.bad_rows) for split in splits], limit)
    return [
        (split, row)
        for split, share in zip(splits, shares, strict=True)
        for row in split.tally.bad_rows[:share]
    ]


def _shares(wanted: Sequence[int], limit: int) -> list[int]:
    """Divide `limit` as evenly as possible; what some do not need goes to the others."""
    shares = [0] * len(wanted)
    for given, number in enumerate(sorted(range(len(wanted)), key=lambda n: wanted[n])):
        shares[number] = min(wanted[number], limit // (len(wanted) - given))
        limit -= shares[number]
    return shares
