"""One running service for all pages whose commands are run."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.models import save_tiny_bert
from tests.support.reader import Reader, reading


@pytest.fixture(scope="session")
def tiny_bert(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_tiny_bert(tmp_path_factory.mktemp("models") / "tiny-bert")


@pytest.fixture(scope="session")
def reader(
    tmp_path_factory: pytest.TempPathFactory, tiny_bert: Path, processes: None
) -> Iterator[Reader]:
    folder = tmp_path_factory.mktemp("reader") / "finetune"
    names = {"sentence-transformers/all-MiniLM-L6-v2": tiny_bert}
    with reading(folder, tiny_bert.parent, names) as reader:
        yield reader
