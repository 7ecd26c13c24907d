"""worker.training.kernels.adapter_inputs: the same numbers under autocast, without copies."""

import copy
from typing import Any

import pytest
import torch
from peft import LoraConfig, get_peft_model
from transformers import AutoModelForCausalLM, LlamaConfig

from tests.training.kernels.kept_bytes import kept_bytes
from worker.training.kernels import adapter_inputs

pytestmark = pytest.mark.filterwarnings("ignore:`is_gradient_checkpointing`:FutureWarning")

TOKENS = torch.arange(2 * 16).view(2, 16) % 64


def adapted(**options: Any) -> Any:
    """A Llama with bfloat16 weights and a LoRA adapter in float32 that changes its outputs."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=64,
        hidden_size=32,
        intermediate_size=88,
        num_hidden_layers=2,
        num_attention_heads=4,
    )
    model: Any = AutoModelForCausalLM.from_config(config, dtype=torch.bfloat16)
    lora = LoraConfig(task_type="CAUSAL_LM", r=4, target_modules="all-linear", **options)
    model = get_peft_model(model, lora)
    for name, weight in model.named_parameters():
        if "lora_B" in name:
            torch.nn.init.normal_(weight, std=0.1)
    return model


def train(model: Any) -> tuple[torch.Tensor, list[torch.Tensor | None]]:
    torch.manual_seed(1)
    with torch.autocast("cpu", torch.bfloat16):
        loss = model(input_ids=TOKENS, labels=TOKENS).loss
    loss.backward()
    return loss.detach(), [weight.grad for weight in model.parameters() if weight.requires_grad]


@pytest.mark.parametrize("options", [{}, {"lora_dropout": 0.5}, {"use_dora": True}])
def test_losses_and_gradients_are_equal(options: dict[str, Any]) -> None:
    plain = adapted(**options)
    model = copy.deepcopy(plain)
    adapter_inputs.install(model)
    (expected, by_plain), (found, gradients) = train(plain), train(model)
    assert torch.equal(found, expected)
    assert len(gradients) >= 2 * 7 * 2
    for given, wanted in zip(gradients, by_plain, strict=True):
        assert given is not None
        assert wanted is not None
        assert torch.equal(given, wanted)


def test_layers_that_share_an_input_keep_it_once() -> None:
    plain = adapted()
    model = copy.deepcopy(plain)
    adapter_inputs.install(model)

    def kept(each: Any) -> int:
        with torch.autocast("cpu", torch.bfloat16):
            return kept_bytes(each, lambda: each(input_ids=TOKENS))

    # In each of two layers: queries, keys and values share one, gate and up another.
    assert kept(plain) - kept(model) >= 2 * 3 * TOKENS.numel() * 32 * 2


@pytest.mark.parametrize("options", [{"lora_dropout": 0.5}, {"use_dora": True}])
def test_others_stay(options: dict[str, Any]) -> None:
    model = adapted(**options)
    adapter_inputs.install(model)
    assert not any(each._forward_pre_hooks for each in model.modules())


def test_without_autocast_the_inputs_are_cast() -> None:
    """As when a model generates between two steps of a training."""
    model = adapted().eval()
    expected = model.generate(input_ids=TOKENS[:1], max_new_tokens=4, do_sample=False)
    adapter_inputs.install(model)
    train(model)
    found = model.generate(input_ids=TOKENS[:1], max_new_tokens=4, do_sample=False)
    assert torch.equal(found, expected)
