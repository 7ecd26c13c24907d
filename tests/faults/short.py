"""What the tests in CI make of an attack: its short version."""

from typing import Final

import pytest

from tests.faults.rows import Attack, Scale
from tests.faults.small_disk import NoMountError

_SEED: Final = 1


def assert_holds(attack: Attack) -> None:
    """Run it; skip the test where this user may not mount a small disk."""
    try:
        row = attack(_SEED, Scale.SHORT)
    except NoMountError as error:
        pytest.skip(str(error))
    assert row.ok, f"{row.attack}: {row.done}: {row.outcome}"
