"""Chat jobs on models whose window is in their mask alone: their losses are transformers' own."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch.nn import functional

from service.contract.stage.events import Notice
from tests.support.models import save_tiny_llama
from tests.tasks.chat.jobs import chat_job, talk

SIZES: dict[str, Any] = {
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "bos_token_id": 0,
    "eos_token_id": 0,
    "pad_token_id": None,
}
EXPERTS: dict[str, Any] = {"num_experts_per_tok": 2, "moe_intermediate_size": 32}
CONFIGS: dict[str, tuple[Any, dict[str, Any]]] = {
    "llama4": (
        transformers.Llama4TextConfig,
        {"attention_chunk_size": 16, "moe_layers": [], "intermediate_size_mlp": 128},
    ),
    "phimoe": (transformers.PhimoeConfig, {"sliding_window": 16, "num_local_experts": 4}),
    "qwen2_moe": (
        transformers.Qwen2MoeConfig,
        {
            **EXPERTS,
            "use_sliding_window": True,
            "sliding_window": 16,
            "max_window_layers": 1,
            "num_experts": 4,
            "shared_expert_intermediate_size": 32,
        },
    ),
}
ROWS = [
    talk(
        "the report of the water board " * (1 + number % 4),
        "was read by all in the morning " * (1 + number % 3),
    )
    for number in range(8)
]


def saved(folder: Path, name: str) -> Path:
    """The tokenizer of a tiny Llama with another model."""
    save_tiny_llama(folder)
    kind, settings = CONFIGS[name]
    words = len(transformers.AutoTokenizer.from_pretrained(folder))
    torch.manual_seed(0)
    config = kind(**{**SIZES, **settings, "vocab_size": words, "max_position_embeddings": 128})
    model = transformers.AutoModelForCausalLM.from_config(config)
    for weight in model.parameters():  # initial weights are so small that no mask would matter
        if weight.dim() == 2:
            torch.nn.init.normal_(weight, std=weight.shape[1] ** -0.5)
    model.save_pretrained(folder)
    return folder


@torch.no_grad()
def plain_loss(folder: Path, features: Any) -> float:
    """Of the trained tokens, by the model's own forward of each conversation alone."""
    model = transformers.AutoModelForCausalLM.from_pretrained(folder).eval()
    total, tokens = 0.0, 0
    for row in features:
        ids, trained = torch.tensor([row["input_ids"]]), torch.tensor([row["trained"]]).bool()
        labels = ids.masked_fill(~trained, -100)[0, 1:]
        total += float(functional.cross_entropy(model(ids).logits[0, :-1], labels, reduction="sum"))
        tokens += int((labels != -100).sum())
    return total / tokens


@pytest.mark.parametrize("name", CONFIGS)
def test_the_loss_of_a_ragged_batch_is_the_models_own(tmp_path: Path, name: str) -> None:
    model = saved(tmp_path / "model", name)
    options = {"max_steps": 1, "save_strategy": "no", "padding_free": None}
    job = chat_job(
        tmp_path / "job",
        ROWS,
        {**options, "per_device_eval_batch_size": 4, "eval_strategy": "steps", "eval_steps": 1},
        splits={"validation": ROWS},
        model=model,
    )
    _, recorder = job.train()
    features = job.splits["validation"].features
    lengths = [len(row["input_ids"]) for row in features]
    assert max(lengths) > 32 > min(lengths)
    found = recorder.evaluations()[0]["eval_loss"]
    assert found == pytest.approx(plain_loss(model, features), abs=1e-5)
    assert not [each for each in recorder.of(Notice) if "padding_free" in each.data]
