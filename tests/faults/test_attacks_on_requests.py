"""Attacks on requests, in short; `make faults` runs them in full."""

import pytest

from tests.faults.registry import REQUESTS
from tests.faults.short import assert_holds

pytestmark = pytest.mark.long


@pytest.mark.parametrize("name", REQUESTS)
def test_all_promises_hold(name: str) -> None:
    assert_holds(REQUESTS[name])
