"""Attacks on requests, in short; `make chaos` runs them in full."""

import pytest

from chaos.registry import REQUESTS
from chaos.short import assert_holds, chosen

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", chosen(REQUESTS))
def test_all_promises_hold(name: str) -> None:
    assert_holds(REQUESTS[name])
