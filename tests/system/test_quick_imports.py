import gc

import pytest

from service.system.quick_imports import without_collections


def test_only_imports_are_without_collections() -> None:
    with without_collections():
        assert not gc.isenabled()
    assert gc.isenabled()
    with pytest.raises(ImportError), without_collections():
        raise ImportError
    assert gc.isenabled()
