"""The short version of every attack; `make faults` runs them in full."""

import pytest

from tests.faults.registry import ATTACKS
from tests.faults.rows import Scale
from tests.faults.small_disk import NoMountError

pytestmark = pytest.mark.timeout(300)

SEED = 1


@pytest.mark.parametrize("name", ATTACKS)
def test_all_promises_hold(name: str) -> None:
    try:
        row = ATTACKS[name](SEED, Scale.SHORT)
    except NoMountError as error:
        pytest.skip(str(error))
    assert row.ok, f"{row.attack}: {row.done}: {row.outcome}"
