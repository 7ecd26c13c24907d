"""worker.training.kernels.lean_layers: the same outputs and gradients, with less kept."""

import copy
from typing import Any

import pytest
import torch
from transformers import (
    AutoModelForCausalLM,
    Gemma3nTextConfig,
    GemmaConfig,
    LlamaConfig,
    MistralConfig,
    PreTrainedConfig,
    Qwen3Config,
)

from tests.training.kernels.kept_bytes import kept_bytes
from worker.training.kernels import lean_layers

SIZES: dict[str, Any] = {
    "vocab_size": 64,
    "hidden_size": 32,
    "intermediate_size": 88,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 8,
}
TOKENS = torch.arange(2 * 16).view(2, 16) % 64


def both(config: PreTrainedConfig, dtype: torch.dtype = torch.float32) -> tuple[Any, Any]:
    """The same model twice: as it is, and with lean layers."""
    torch.manual_seed(0)
    plain: Any = AutoModelForCausalLM.from_config(config, dtype=dtype)
    for weight in plain.parameters():
        torch.nn.init.normal_(weight, mean=0.1, std=0.3)
    lean = copy.deepcopy(plain)
    lean_layers.install(lean)
    return plain, lean


def replaced(model: torch.nn.Module) -> int:
    return sum(type(each).__name__.startswith("_Lean") for each in model.modules())


def loss_of(model: Any) -> torch.Tensor:
    loss: torch.Tensor = model(input_ids=TOKENS, labels=TOKENS).loss
    return loss


# Two norms and an MLP in each layer, and the last norm; Qwen3 also has norms of queries and keys.
@pytest.mark.parametrize(
    ("kind", "count"), [(LlamaConfig, 7), (MistralConfig, 7), (Qwen3Config, 11)]
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_outputs_are_equal_and_gradients_close(
    kind: type[PreTrainedConfig], count: int, dtype: torch.dtype
) -> None:
    plain, lean = both(kind(**SIZES), dtype)
    assert (replaced(plain), replaced(lean)) == (0, count)
    expected, found = loss_of(plain), loss_of(lean)
    assert torch.equal(found, expected)
    expected.backward()
    found.backward()
    tolerance = 1e-5 if dtype is torch.float32 else 5e-2
    for (name, wanted), given in zip(plain.named_parameters(), lean.parameters(), strict=True):
        scale = wanted.grad.abs().max()
        assert bool((given.grad - wanted.grad).abs().max() <= tolerance * scale), name


def test_gradients_are_those_of_float64() -> None:
    """Nearer to the exact ones than what autograd makes of the same layers in bfloat16."""
    plain, lean = both(LlamaConfig(**SIZES), torch.bfloat16)
    exact = copy.deepcopy(plain).double()
    errors = []
    loss_of(exact).backward()
    for model in (plain, lean):
        loss_of(model).backward()
        pairs = zip(model.parameters(), exact.parameters(), strict=True)
        errors.append(sum(float((a.grad - b.grad).norm() / b.grad.norm()) for a, b in pairs))
    assert errors[1] <= 1.1 * errors[0]


@pytest.mark.parametrize("autocast", [False, True])
def test_less_is_kept(autocast: bool) -> None:
    plain, lean = both(LlamaConfig(**SIZES))

    def kept(model: Any) -> int:
        with torch.autocast("cpu", torch.bfloat16, enabled=autocast):
            return kept_bytes(model, lambda: model.model(input_ids=TOKENS))

    tokens = TOKENS.numel()
    # Of each layer's two norms the normalized input in float32; of its MLP the activation.
    norms, activation = 2 * 2 * tokens * 32 * 4, 2 * tokens * 88 * (2 if autocast else 4)
    assert kept(plain) - kept(lean) >= norms + activation


def test_another_formula_stays() -> None:
    """Gemma's norms multiply by 1 + weight, and its MLPs use GELU."""
    _plain, model = both(GemmaConfig(**SIZES))
    assert replaced(model) == 0


def test_names_of_weights_and_random_state_stay() -> None:
    torch.manual_seed(5)
    expected = torch.get_rng_state()
    plain, _ = both(LlamaConfig(**SIZES))
    names = list(plain.state_dict())
    torch.set_rng_state(expected)
    lean_layers.install(plain)
    assert torch.equal(torch.get_rng_state(), expected)
    assert list(plain.state_dict()) == names
    assert plain.training


def test_layers_of_one_class_may_differ() -> None:
    """Gemma 3n's MLPs are sparse in some layers: here in the second one alone."""
    config = Gemma3nTextConfig(
        **SIZES,
        vocab_size_per_layer_input=64,
        hidden_size_per_layer_input=8,
        laurel_rank=4,
        num_kv_shared_layers=0,
        layer_types=["full_attention", "full_attention"],
        hidden_activation="silu",
        activation_sparsity_pattern=[0.0, 0.9],
    )
    plain, lean = both(config)
    with torch.no_grad():
        assert torch.equal(lean(input_ids=TOKENS).logits, plain(input_ids=TOKENS).logits)
    assert [type(each.mlp).__name__ for each in lean.model.layers] == [
        "_LeanGatedMLP",
        "Gemma3nTextMLP",
    ]
