"""A small Llama with a chat template, created locally, without network."""

from pathlib import Path
from typing import Any, Final

from tests.support.models import made_once, train_tokenizer

CHATML: Final = (
    "{% for message in messages %}<|im_start|>{{ message['role'] }}\n"
    "{{ message['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
_TEXT: Final = "the report of the water board was read by all who were there in the morning "


@made_once
def save_tiny_llama(folder: Path, *, seed: int = 0, template: str | None = CHATML) -> Path:
    """A Llama of 2 layers, 32 wide, 256 positions, without a pad token; a vocabulary of bytes and
    a few words."""
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    tokenizer = tiny_tokenizer(template)
    torch.manual_seed(seed)
    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=2,
        num_key_value_heads=1,
        max_position_embeddings=256,
        bos_token_id=tokenizer.eos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        tie_word_embeddings=False,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


def tiny_tokenizer(template: str | None = CHATML) -> Any:
    specials = ["<unk>", "<|im_start|>", "<|im_end|>"]
    tokenizer = train_tokenizer(
        [_TEXT],
        vocabulary=300,
        specials=specials,
        template="$A",
        unk_token="<unk>",
        eos_token="<|im_end|>",
        additional_special_tokens=["<|im_start|>"],
        model_max_length=256,
    )
    tokenizer.chat_template = template
    return tokenizer
