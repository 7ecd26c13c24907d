"""What a worker registers about itself."""

import importlib.util
import sys

import pytest

from worker.lifecycle import registration


def test_packages_are_looked_for_and_not_imported(monkeypatch: pytest.MonkeyPatch) -> None:
    before = set(sys.modules)
    installed = {"torchao": object(), "torch": object()}
    monkeypatch.setattr(importlib.util, "find_spec", installed.get)
    assert registration.packages() == ["torchao"]
    assert set(sys.modules) == before
