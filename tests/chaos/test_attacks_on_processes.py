"""Attacks on processes, in short; `make chaos` runs them in full."""

import pytest

from chaos.registry import PROCESSES
from chaos.short import assert_holds, chosen

# The waits of an attack have limits of their own, and report what did not come.
pytestmark = [pytest.mark.long, pytest.mark.timeout(900)]


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize("name", chosen(PROCESSES))
def test_all_promises_hold(name: str) -> None:
    assert_holds(PROCESSES[name])
