"""Runs programs without root's privileges: the kernel then keeps from them what root may see."""

import os
import shutil
from functools import lru_cache

import pytest


@lru_cache
def prefix() -> list[str]:
    """Put before a command; nothing if this process is not root's. Skips where it cannot be.

    The user stays the same, because another one may not read this interpreter; without
    capabilities root is a user like any other.
    """
    if os.getuid() != 0:
        return []
    if shutil.which("setpriv") is None:
        pytest.skip("root without setpriv cannot give up its privileges")
    return ["setpriv", "--bounding-set=-all", "--inh-caps=-all"]
