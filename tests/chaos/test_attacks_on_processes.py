"""Attacks on processes, in short; `make chaos` runs them in full."""

import pytest

from chaos.registry import PROCESSES
from chaos.short import assert_holds, chosen

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", chosen(PROCESSES))
def test_all_promises_hold(name: str) -> None:
    assert_holds(PROCESSES[name])
