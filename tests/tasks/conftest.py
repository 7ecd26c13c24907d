"""Tokenizers that differ in what matters: side, special tokens, token types."""

from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer, RobertaTokenizer

from tests.support.models import minilm_dir
from tests.training.support.jobs import one_thread as one_thread


@pytest.fixture(scope="session")
def minilm() -> Any:
    return AutoTokenizer.from_pretrained(minilm_dir())


@pytest.fixture
def minilm_left() -> Any:
    return AutoTokenizer.from_pretrained(minilm_dir(), padding_side="left")


@pytest.fixture(scope="session")
def roberta(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """Byte-level, one token a byte, <s> a </s></s> b </s>, no token types."""
    alphabet = [chr(n) for n in range(33, 127)] + ["Ġ", "Ã", "©"]
    tokens = ["<s>", "<pad>", "</s>", "<unk>", "<mask>", *alphabet]
    folder: Path = tmp_path_factory.mktemp("roberta")
    tokenizer = RobertaTokenizer(vocab={t: n for n, t in enumerate(tokens)}, merges=[])
    tokenizer.save_pretrained(folder)
    return AutoTokenizer.from_pretrained(folder)
