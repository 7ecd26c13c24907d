"""Attacks on trainings, in short; `make chaos` runs them in full."""

import pytest

from chaos.registry import TRAININGS
from chaos.short import assert_holds, chosen

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", chosen(TRAININGS))
def test_all_promises_hold(name: str) -> None:
    assert_holds(TRAININGS[name])
