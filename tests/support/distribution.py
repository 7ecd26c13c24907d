"""Which tests a process of pytest-xdist runs in a row, and in which order."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import pytest
from xdist.scheduler import LoadScopeScheduling

# Their tests share fixtures that take many seconds to start.
_WHOLE_FOLDERS: Final = ("tests/e2e/", "tests/stages/")


def unit_of(nodeid: str) -> str:
    """The file of a test, or the folder if one process runs all of it."""
    file = nodeid.partition("::")[0]
    return next((folder for folder in _WHOLE_FOLDERS if file.startswith(folder)), file)


def in_order(items: Sequence[pytest.Item]) -> list[pytest.Item]:
    """Spread the units with `long` tests over the first two thirds of the others.

    Long tests mostly wait, which costs least while short ones compute in the other processes, and
    none of them may begin when those have run out. Folders come first: they take longest.
    """
    units: dict[str, list[pytest.Item]] = defaultdict(list)
    for item in items:
        units[unit_of(item.nodeid)].append(item)
    long = [unit for unit, tests in units.items() if tests[0].get_closest_marker("long")]
    long.sort(key=lambda unit: unit not in _WHOLE_FOLDERS)
    order = [unit for unit in units if unit not in long]
    between = len(order) * 2 // 3 // max(1, len(long))
    for place, unit in enumerate(long):
        order.insert(place * (between + 1), unit)
    return [item for unit in order for item in units[unit]]


class ByUnit(LoadScopeScheduling):  # type: ignore[misc]
    """Gives each process one unit after another."""

    def _split_scope(self, nodeid: str) -> str:
        return unit_of(nodeid)
