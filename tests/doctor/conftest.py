"""Fixtures of the doctor's tests."""

import os
from collections.abc import Iterator
from unittest import mock

import pytest


@pytest.fixture(scope="module", autouse=True)
def _environment() -> Iterator[None]:
    """An examination makes its own process work offline; the next tests of this one may not."""
    with mock.patch.dict(os.environ):
        yield
