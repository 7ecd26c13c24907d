"""worker.tasks.preference.task: what is changed in a model before it is trained."""

from typing import Any

import pytest
import torch
import transformers

from worker.tasks.preference.task import disable_dropout

LLAMA = transformers.LlamaConfig(
    vocab_size=50,
    hidden_size=16,
    intermediate_size=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    attention_dropout=0.5,
)
OPT = transformers.OPTConfig(
    vocab_size=50,
    hidden_size=16,
    ffn_dim=16,
    num_hidden_layers=2,
    num_attention_heads=2,
    word_embed_proj_dim=16,
    max_position_embeddings=32,
    dropout=0.5,
    layerdrop=0.5,
)
GPT2 = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)


@pytest.mark.parametrize("config", [LLAMA, OPT, GPT2], ids=["Llama", "OPT", "GPT-2"])
def test_there_is_no_dropout(config: Any) -> None:
    """Whether it is a module or a number."""
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        assert not torch.equal(model(ids).logits, model(ids).logits)
        disable_dropout(model)
        found = model(ids).logits
        assert torch.equal(model(ids).logits, found)
        assert torch.equal(model.eval()(ids).logits, found)
