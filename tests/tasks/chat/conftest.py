from pathlib import Path
from typing import Any

import pytest

from tests.support.models import save_tiny_gpt2


@pytest.fixture(scope="module")
def tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """GPT-2's kind: bytes, with `<|endoftext|>` as its only special token."""
    from transformers import AutoTokenizer

    folder: Path = save_tiny_gpt2(tmp_path_factory.mktemp("gpt2"))
    return AutoTokenizer.from_pretrained(folder)
