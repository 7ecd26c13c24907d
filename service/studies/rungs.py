"""Where trials are compared: the rungs of successive halving, and the brackets of Hyperband."""

import math
from binascii import crc32
from bisect import bisect_left
from collections.abc import Iterable, Sequence
from typing import Final

from service.contract.fields import bounds
from service.contract.search.pruners import MOST_RUNGS, AshaPruner, HyperbandPruner

HalvingPruner = AshaPruner | HyperbandPruner
STUDY_NAME: Final = "search"
"""Part of Optuna's rule for the bracket of a trial. The same for all searches, so that equal
searches have equal brackets."""


def rung_levels(pruner: HalvingPruner, total: int | None, every: int = 1) -> list[list[int]]:
    """The rungs of each bracket in the pruner's unit; ASHA has one bracket.

    `total` is the whole training, None while it is unknown. `every` is the distance between
    evaluations: the first rung where the pruner names none. Rungs that share an evaluation are
    one rung, and none shares the last evaluation, after which nothing can be saved.
    """
    if isinstance(pruner, AshaPruner):
        candidates = pruner.rungs or _powers(pruner, every, pruner.min_early_stopping_rate)
        return [_apart(candidates, total, every)]
    whole = pruner.max_resource or total
    return [
        _apart(_powers(pruner, every, bracket), total or whole, every)
        for bracket in range(_count(pruner.min_resource or every, whole, pruner.reduction_factor))
    ]


def _powers(pruner: HalvingPruner, every: int, left_out: int) -> list[int]:
    first = pruner.min_resource or every
    return [first * pruner.reduction_factor ** (left_out + rung) for rung in range(MOST_RUNGS)]


def _apart(candidates: Iterable[int], total: int | None, every: int) -> list[int]:
    end = bounds.MOST_STEPS + 1 if total is None else total
    levels: dict[int, int] = {}
    for level in candidates:
        evaluation = math.ceil(level / every) * every
        if evaluation < end:
            levels.setdefault(evaluation, level)
    return list(levels.values())


def _count(first: int, whole: int | None, reduction_factor: int) -> int:
    """How many brackets there are; one while the whole is not known.

    In floating point, as Optuna counts: 1 to 243 by 3 gives 5, not 6. The one lost is the bracket
    that compares nothing.
    """
    if whole is None or whole < first:
        return 1
    return math.floor(math.log(whole / first, reduction_factor)) + 1


class Brackets:
    """Which bracket each trial belongs to: Optuna's `HyperbandPruner._get_bracket_id`."""

    def __init__(self, count: int, reduction_factor: int) -> None:
        self._shares = [
            math.ceil(count * reduction_factor**others / (others + 1))
            for others in reversed(range(count))
        ]
        self._members: list[list[int]] = [[] for _ in range(count)]
        self._sorted = 0  # Trials below this number are among the members.

    def bracket_of(self, number: int) -> int:
        place = crc32(f"{STUDY_NAME}_{number}".encode()) % sum(self._shares)
        for bracket, share in enumerate(self._shares):
            place -= share
            if place < 0:
                return bracket
        raise AssertionError("a remainder is less than the sum")

    def among(self, numbers: range) -> Sequence[int]:
        """How many of these consecutive trials each bracket has."""
        if len(self._members) == 1:
            return [len(numbers)]
        for number in range(self._sorted, numbers.stop):
            self._members[self.bracket_of(number)].append(number)
        self._sorted = max(self._sorted, numbers.stop)
        return [
            bisect_left(members, numbers.stop) - bisect_left(members, numbers.start)
            for members in self._members
        ]
