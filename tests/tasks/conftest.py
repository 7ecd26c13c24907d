"""Tokenizers that differ in what matters: side, special tokens, token types."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from transformers import AutoTokenizer, RobertaTokenizer

from tests.support.models import minilm_dir


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


@pytest.fixture(autouse=True, scope="module")
def one_thread() -> Iterator[None]:
    """Golden numbers depend on how sums are split; and the machine is shared."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OMP_NUM_THREADS", "1")
        yield
    torch.set_num_threads(before)
