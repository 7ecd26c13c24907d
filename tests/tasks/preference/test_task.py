"""worker.tasks.preference.dropout: what is changed in a model before it is trained."""

import math
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from huggingface_hub.errors import StrictDataclassClassValidationError

from service.contract.failures import FailureCode
from tests.support import every_model
from tests.tasks.preference.support import job
from tests.training.support.jobs import fails_with
from worker.tasks.preference.dropout import disable_dropout

TINY: dict[str, Any] = {"vocab_size": 50, "hidden_size": 16}
LAYERS: dict[str, Any] = {"num_hidden_layers": 2, "num_attention_heads": 2}
LLAMA = transformers.LlamaConfig(**TINY, **LAYERS, intermediate_size=16, attention_dropout=0.5)
OPT = transformers.OPTConfig(
    **TINY,
    **LAYERS,
    ffn_dim=16,
    word_embed_proj_dim=16,
    max_position_embeddings=32,
    dropout=0.5,
    layerdrop=0.5,
)
GPT2 = transformers.GPT2Config(vocab_size=50, n_embd=16, n_layer=2, n_head=2, n_positions=32)
REAL: dict[str, Any] = {"max_position_embeddings": 256, "bos_token_id": 0, "eos_token_id": 0}
REAL |= {"vocab_size": 400, "hidden_size": 16, **LAYERS}
FALCON = transformers.FalconConfig(
    **REAL, hidden_dropout=0.3, attention_dropout=0.2, parallel_attn=False
)
PERSIMMON = transformers.PersimmonConfig(**REAL, intermediate_size=16, attention_dropout=0.3)
PROPHETNET = transformers.ProphetNetConfig(
    **TINY, num_decoder_layers=2, num_decoder_attention_heads=2, decoder_ffn_dim=16, dropout=0.5
)
MIXTRAL = transformers.MixtralConfig(
    **TINY, **LAYERS, intermediate_size=16, num_key_value_heads=1, router_jitter_noise=0.3
)
ALL = [LLAMA, OPT, GPT2, FALCON, PERSIMMON, PROPHETNET, MIXTRAL]


@pytest.mark.parametrize("config", ALL, ids=[config.model_type for config in ALL])
def test_there_is_no_dropout(config: Any) -> None:
    """Whether it is a module, a number or a field of the configuration, which is saved as it
    was."""
    before = config.to_dict()
    torch.manual_seed(0)  # OPT drops all its layers in one of sixteen pairs of passes
    model = transformers.AutoModelForCausalLM.from_config(config).train()
    ids = torch.arange(3, 15)[None]
    with torch.no_grad():
        assert not torch.equal(model(ids).logits, model(ids).logits)
        disable_dropout(model)
        found = model(ids).logits
        assert torch.equal(model(ids).logits, found)
        assert torch.equal(model.eval()(ids).logits, found)
    saved = model.config.to_dict()
    assert {name: saved[name] for name in before if "drop" in name} == {
        name: value for name, value in before.items() if "drop" in name
    }


class _Noisy(transformers.LlamaForCausalLM):
    def forward(self, *arguments: Any, **named: Any) -> Any:
        output = super().forward(*arguments, **named)
        output["logits"] = torch.nn.functional.dropout(output.logits, 0.1, self.training)
        return output


def test_a_model_with_other_random_numbers_is_refused() -> None:
    """Found by value, whatever draws them."""
    with fails_with(FailureCode.UNSUPPORTED_ARCHITECTURE, "'llama' compute with random numbers"):
        disable_dropout(_Noisy(LLAMA))


@pytest.mark.parametrize(
    ("config", "kind"),
    [(FALCON, "preference"), (PERSIMMON, "preference"), (FALCON, "reward")],
    ids=["falcon", "persimmon", "falcon's reward"],
)
def test_an_untrained_model_has_one_loss(tmp_path: Path, config: Any, kind: str) -> None:
    """At a learning rate of 0 DPO's is log 2 at each step; a reward's is that of its evaluation."""
    made = job(tmp_path, {"type": kind}, learning_rate=0.0, per_device_train_batch_size=12)
    torch.manual_seed(0)
    model = transformers.AutoModelForCausalLM.from_config(config)
    folder = Path(made.body["model"]["name_or_path"])
    model.save_pretrained(folder)
    losses = list(made.train()[1].train_values("loss").values())
    assert losses == pytest.approx([math.log(2)] * 4 if kind == "preference" else losses[:1] * 4)


@pytest.mark.heavy
@pytest.mark.parametrize("model_type", list(every_model.MAPPINGS["causal-lm"]))
def test_of_every_type(model_type: str) -> None:
    try:
        fields = transformers.CONFIG_MAPPING[model_type]().to_dict()
    except StrictDataclassClassValidationError:  # of Gemma 4's assistant
        pytest.skip("its default settings contradict each other")
    numbers = {name: 0.3 for name, value in fields.items() if "drop" in name and _is_one(value)}
    batch = every_model.batch((9, 21, 14))
    for model in every_model.models("causal-lm", model_type, **numbers):
        model.train()
        try:
            with torch.no_grad():
                model(**batch, use_cache=False)
        except Exception:
            continue
        disable_dropout(model)
        with torch.no_grad():
            one, other = (model(**batch, use_cache=False).logits for _ in range(2))
        assert torch.equal(one, other)
        return
    pytest.skip("no tiny model of this type")


def _is_one(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
