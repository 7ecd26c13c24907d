"""Finds the task's columns under the names that other tools' rows have for them.

The names, and their order of preference, are those of the reference scripts; the spec always comes
first. What is found is reported. Pure Python: see `table`.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final

from service.contract.failures import FailureCode, StageError
from worker.data.cleaning import Columns
from worker.data.inferences import Inferences

Names = Mapping[str, str]
"""The task's column → that of the rows."""
_OPTION: Final = "dataset.columns"
_IDS: Final = frozenset(
    ("", "id", "idx", "index", "guid", "uid", "uuid", "unnamed: 0", "__index_level_0__")
)
"""Columns that only number the rows, in lower case; pandas writes some of them."""


@dataclass(frozen=True)
class UsualNames:
    """What the rows of a task have in other tools."""

    script: str = ""
    """The reference that reads them."""
    named: Sequence[Sequence[Names]] = ()
    """The first of these that the rows have; where they have several of one step, the spec must
    decide."""
    own: Collection[str] = ()
    """Those of `named` that the script does not find."""
    in_order: Sequence[str] = ()
    """The task's columns in the order in which the script takes those that have any other name."""
    instead_of: Sequence[str] = ()
    """Alternative columns: every row has one of them, and the first is the task's."""
    written: Mapping[tuple[str, ...], str] = field(default_factory=dict)
    """Columns that together are a form of a row → how it becomes text."""
    unused: Mapping[str, str] = field(default_factory=dict)
    """Columns that are not read here, and would change the training elsewhere → who reads them, and
    what for."""


@dataclass
class ColumnFinder:
    """Of one job: what the first table decides holds for the others, as in the scripts."""

    usual: UsualNames = field(default_factory=UsualNames)
    given: Names = field(default_factory=dict)
    """The spec's."""
    inferences: Inferences = field(default_factory=Inferences)
    _found: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self._watched = frozenset(self.usual.unused)

    def complete(self, columns: Columns, found: Collection[str]) -> Columns:
        """`columns` for rows with the columns `found`; unchanged if one would still be missing.

        Raises StageError if what is missing can be found in several ways.
        """
        columns = completed = _with(columns, self._earlier(columns, found))
        for step in self.usual.named:
            completed = _with(completed, self._named(completed, found, step))
        completed = _with(completed, self._in_order(completed, found))
        if self._missing(completed, found) or self._contradicts(completed):
            return columns
        self._report(columns, completed)
        self._report_form(completed, found)
        return completed

    def unused(self, columns: Columns, found: Collection[str]) -> Iterable[str]:
        if self._watched.isdisjoint(found):
            return ()
        read = set(columns.names.values())
        return [name for name in self.usual.unused if name in found and name not in read]

    def _earlier(self, columns: Columns, found: Collection[str]) -> Names:
        return {
            ours: theirs
            for ours, theirs in self._found.items()
            if theirs in found and self._is_open(ours, columns, found)
        }

    def _contradicts(self, completed: Columns) -> bool:
        """Whether it has another name for a column that an earlier table has decided."""
        return any(
            completed.names[ours] not in (ours, theirs) for ours, theirs in self._found.items()
        )

    def _is_open(self, ours: str, columns: Columns, found: Collection[str]) -> bool:
        """Whether the column may be found under another name: it is missing, and the spec does not
        name it."""
        has_no_name = ours in columns.names and columns.names[ours] not in found
        return has_no_name and ours not in self.given

    def _missing(self, columns: Columns, found: Collection[str]) -> list[str]:
        forms = self.usual.instead_of
        missing = list(columns.missing(found)) + list(forms[:1])
        has_form = not all(self._is_open(ours, columns, found) for ours in forms)
        return [
            ours for ours in missing if ours not in self.given and not (ours in forms and has_form)
        ]

    def _named(self, columns: Columns, found: Collection[str], step: Sequence[Names]) -> Names:
        missing, free = self._missing(columns, found), self._free(columns, found)
        fitting: list[Names] = []
        for names in step:
            open_ = {
                ours: theirs
                for ours, theirs in names.items()
                if self._is_open(ours, columns, found)
            }
            # The first one decides: the others may be there under the task's names.
            fits = next(iter(names)) in open_ and free.issuperset(open_.values())
            if fits and open_ not in fitting:
                fitting.append(open_)
        if len(fitting) == 1:
            return fitting[0]
        if fitting and not fitting[0].keys().isdisjoint(missing):
            raise _ambiguous(fitting)
        return {}

    def _in_order(self, columns: Columns, found: Collection[str]) -> Names:
        """The columns that are left, if they are as many as the task's."""
        known = self.usual.in_order
        missing = [name for name in self._missing(columns, found) if name in known]
        if not missing:
            return {}
        free = self._free(columns, found).difference(self.usual.unused, self.usual.own)
        left = [name for name in found if name in free and not _is_id(name)]
        # Optional columns, and labels of rows to predict, are only taken where all are there.
        for wanted in ([ours for ours in known if self._is_open(ours, columns, found)], missing):
            if len(wanted) == len(left):
                return dict(zip(wanted, left, strict=True))
        return {}

    @staticmethod
    def _free(columns: Columns, found: Collection[str]) -> set[str]:
        return set(found).difference(columns.names.values())

    def _report(self, columns: Columns, completed: Columns) -> None:
        for ours, theirs in completed.names.items():
            if theirs == columns.names[ours] or ours in self._found:
                continue
            self._found[ours] = theirs
            by_name = any(names.get(ours) == theirs for step in self.usual.named for names in step)
            how = "by its name" if by_name else "by the order of the columns"
            script = "" if theirs in self.usual.own else f", as {self.usual.script} does"
            reason = f"the rows have no `{ours}`; found {how}{script}"
            self.inferences.add(f"{_OPTION}.{ours}", theirs, reason)

    def _report_form(self, columns: Columns, found: Collection[str]) -> None:
        for form, how in self.usual.written.items():
            names = [columns.names[name] for name in form]
            if set(names) <= set(found) and columns.names[self.usual.instead_of[0]] not in found:
                self.inferences.add(_OPTION, dict(zip(form, names, strict=True)), how)


def _with(columns: Columns, names: Names) -> Columns:
    return replace(columns, names={**columns.names, **names}) if names else columns


def _is_id(name: str) -> bool:
    lower = name.strip().lower()
    return lower in _IDS or lower.endswith("_id")


def _ambiguous(readings: Sequence[Names]) -> StageError:
    column = next(iter(readings[0]))
    shown = " or ".join(
        f"`{{{', '.join(f'{ours}: {theirs}' for ours, theirs in names.items())}}}`"
        for names in readings
    )
    return StageError(
        FailureCode.MISSING_COLUMN,
        f"Missing column {column!r}, which can be "
        f"{' or '.join(repr(names[column]) for names in readings)}: set `{_OPTION}` to {shown}",
        missing=[column],
        readings=[dict(names) for names in readings],
    )
