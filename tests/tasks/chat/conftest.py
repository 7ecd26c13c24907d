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


CONTROL = [
    *("<s>", "</s>", "<|im_start|>", "<|im_end|>", "<|im_sep|>", "<|end|>", "<|eot_id|>"),
    *("<|start_header_id|>", "<|end_header_id|>", "<start_of_turn>", "<end_of_turn>", "[INST]"),
    *("[/INST]", "<|start_of_role|>", "<|end_of_role|>", "<|end_of_text|>", "<\uff5cUser\uff5c>"),
    *("<\uff5cAssistant\uff5c>", "<|user|>", "<|assistant|>", "<|system|>"),
]


@pytest.fixture(scope="module")
def any_tokenizer(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """The same with the special tokens of every family; BOS is `<s>`, EOS is `</s>`."""
    from transformers import AutoTokenizer

    folder: Path = save_tiny_gpt2(tmp_path_factory.mktemp("gpt2"))
    tokenizer = AutoTokenizer.from_pretrained(folder, bos_token="<s>", eos_token="</s>")
    tokenizer.add_special_tokens({"additional_special_tokens": CONTROL[2:]})
    return tokenizer
