"""Short versions of the attacks, for tests."""

from collections.abc import Iterable
from typing import Any, Final

import pytest

from chaos.faults.small_disk import NoMountError
from chaos.rows import Attack, Scale

_SEED: Final = 1
_EVERY_TIME: Final = frozenset({"kills"})
"""That of the main promises: CI has little time."""


def chosen(attacks: Iterable[str]) -> list[Any]:
    """All attacks as parameters of a test; only `make heavy` runs most of them."""
    heavy = pytest.mark.heavy
    return [pytest.param(name, marks=() if name in _EVERY_TIME else heavy) for name in attacks]


def assert_holds(attack: Attack) -> None:
    """Run the attack; skip the test if this user may not mount a small disk."""
    try:
        row = attack(_SEED, Scale.SHORT)
    except NoMountError as error:
        pytest.skip(str(error))
    assert row.ok, f"{row.attack}: {row.done}: {row.outcome}"
