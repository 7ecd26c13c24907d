"""Batches with padding, and models to compare on them."""

from typing import Any

import torch
import transformers

SIZES: dict[str, Any] = {
    "hidden_size": 32,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 64,
    "vocab_size": 99,
    "pad_token_id": 0,
    "hidden_dropout_prob": 0.0,
    "attention_probs_dropout_prob": 0.0,
}


LLAMA = {name: value for name, value in SIZES.items() if "dropout" not in name}


QA = transformers.AutoModelForQuestionAnswering


LENGTHS = (5, 11, 2, 11)


def batch() -> dict[str, torch.Tensor]:
    """Padded on the left: nothing depends on the side."""
    torch.manual_seed(1)
    mask = (torch.arange(11) >= 11 - torch.tensor(LENGTHS)[:, None]).long()
    return {"input_ids": torch.randint(2, 99, mask.shape) * mask, "attention_mask": mask}


def right(rectangle: dict[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {name: value.flip(1) for name, value in rectangle.items()}


def gradients(model: Any, loss: torch.Tensor) -> dict[str, torch.Tensor]:
    model.zero_grad()
    loss.backward()
    return {
        name: value.grad.clone()
        for name, value in model.named_parameters()
        if value.grad is not None
    }
