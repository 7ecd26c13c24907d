"""What the tests make of an attack: its short version."""

from collections.abc import Iterable
from typing import Any, Final

import pytest

from chaos.rows import Attack, Scale
from chaos.small_disk import NoMountError

_SEED: Final = 1
_EVERY_TIME: Final = frozenset({"kills", "killed-saves"})
"""Those of what sets us apart. CI has 20 minutes."""


def chosen(attacks: Iterable[str]) -> list[Any]:
    """The parameters of a test: all of them, most of which only `make heavy` runs."""
    heavy = pytest.mark.heavy
    return [pytest.param(name, marks=() if name in _EVERY_TIME else heavy) for name in attacks]


def assert_holds(attack: Attack) -> None:
    """Run it; skip the test where this user may not mount a small disk."""
    try:
        row = attack(_SEED, Scale.SHORT)
    except NoMountError as error:
        pytest.skip(str(error))
    assert row.ok, f"{row.attack}: {row.done}: {row.outcome}"
