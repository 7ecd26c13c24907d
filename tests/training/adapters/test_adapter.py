"""worker.training.adapters.adapter: each option changes what it must; new heads train; few bits."""

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from service.contract.failures import FailureCode
from tests.contract.factories import job_spec
from tests.support.models import minilm_dir, save_tiny_bert
from tests.training.support.jobs import fails_with
from worker.training import build
from worker.training.adapters import quantization
from worker.training.adapters.adapter import export, wrap
from worker.training.checkpointing import weights

CPU = torch.device("cpu")
NONE = Path()


def gpt2(vocab_size: int = 9) -> Any:
    torch.manual_seed(0)
    shape: dict[str, Any] = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16}
    config = transformers.GPT2Config(vocab_size=vocab_size, **shape)
    return transformers.GPT2LMHeadModel(config)


def wrapped(model: Any = None, **adapter: Any) -> Any:
    spec = job_spec(task="causal-lm", peft={"method": "lora", **adapter})
    return wrap(model or gpt2(), spec, NONE, [])


def trained(model: Any) -> set[str]:
    """Names of what trains, without peft's decoration."""
    names = (name for name, value in model.named_parameters() if value.requires_grad)
    return {name.removeprefix("base_model.model.").replace(".default", "") for name in names}


def attention(model: Any, layer: int = 0) -> Any:
    return model.get_base_model().transformer.h[layer].attn.c_attn


class TestOptions:
    def test_rank_alpha_and_rslora_scale_the_change(self) -> None:
        assert attention(wrapped(r=4, lora_alpha=8)).scaling["default"] == 2.0
        assert attention(wrapped(r=4, lora_alpha=8, use_rslora=True)).scaling["default"] == 4.0
        assert attention(wrapped(r=4)).lora_A["default"].weight.shape == (4, 8)

    def test_patterns_are_of_some_modules(self) -> None:
        model = wrapped(
            r=4, rank_pattern={"h.1.attn.c_attn": 2}, alpha_pattern={"h.1.attn.c_attn": 6}
        )
        assert [attention(model, layer).r["default"] for layer in (0, 1)] == [4, 2]
        assert [attention(model, layer).scaling["default"] for layer in (0, 1)] == [2.0, 3.0]

    def test_dropout(self) -> None:
        assert attention(wrapped(lora_dropout=0.25)).lora_dropout["default"].p == 0.25

    def test_dora_has_magnitudes(self) -> None:
        assert any("lora_magnitude_vector" in name for name in trained(wrapped(use_dora=True)))
        assert not any("lora_magnitude_vector" in name for name in trained(wrapped()))

    def test_biases(self) -> None:
        only = {f"transformer.h.{layer}.attn.c_attn.base_layer.bias" for layer in (0, 1)}
        assert {n for n in trained(wrapped(bias="lora_only")) if n.endswith(".bias")} == only
        everywhere = {n for n in trained(wrapped(bias="all")) if n.endswith(".bias")}
        assert only < everywhere
        assert "transformer.ln_f.bias" in everywhere
        own = {n for n in trained(wrapped(lora_bias=True)) if n.endswith(".bias")}
        assert own == {f"transformer.h.{layer}.attn.c_attn.lora_B.bias" for layer in (0, 1)}

    def test_targets(self) -> None:
        def modules(**options: Any) -> set[str]:
            return {name.partition(".lora_")[0] for name in trained(wrapped(**options))}

        both = {f"transformer.h.{layer}.attn.c_attn" for layer in (0, 1)}
        assert modules() == both
        assert len(modules(target_modules="all-linear")) == 8  # without the output layer
        one = {"transformer.h.1.mlp.c_fc"}
        assert modules(target_modules=r".*\.1\..*c_fc") == one
        assert modules(target_modules=["c_fc"], layers_to_transform=[1]) == one
        assert modules(target_modules=["c_fc", "c_attn"], exclude_modules=["c_fc"]) == both

    def test_modules_to_save_train_whole(self) -> None:
        names = trained(wrapped(modules_to_save=["ln_f"]))
        assert {n for n in names if "ln_f" in n} == {
            "transformer.ln_f.modules_to_save.weight",
            "transformer.ln_f.modules_to_save.bias",
        }

    def test_first_weights(self) -> None:
        seen = []
        for how in (True, "gaussian", "orthogonal"):
            layer = attention(wrapped(init_lora_weights=how))
            change = layer.lora_B["default"].weight @ layer.lora_A["default"].weight
            assert change.abs().max() < 1e-6  # the model begins as it was
            seen.append(layer.lora_A["default"].weight)
        assert not torch.allclose(seen[0], seen[1])
        assert not torch.allclose(seen[0], seen[2])

    def test_ia3_scales_feed_forward_at_its_input(self) -> None:
        spec = {"method": "ia3", "target_modules": ["c_attn", "mlp.c_proj"]}
        model = wrapped(**spec, feedforward_modules=["mlp.c_proj"])
        shapes = {n: tuple(p.shape) for n, p in model.named_parameters() if p.requires_grad}
        assert {s for n, s in shapes.items() if "attn" in n} == {(24, 1)}
        assert {s for n, s in shapes.items() if "mlp" in n} == {(1, 32)}

    def test_activation_checkpointing_has_gradients_beside_a_frozen_base(self) -> None:
        training = {"activation_checkpointing": True}
        spec = job_spec(task="causal-lm", peft={"method": "lora"}, training=training)
        model: Any = wrap(gpt2(), spec, NONE, []).train()
        build.prepare_model(model, spec.training)
        model(torch.arange(8)[None]).logits.sum().backward()
        layer = attention(model)
        assert layer.lora_B["default"].weight.grad.abs().max() > 0


class TestPrompts:
    def prompt(self, **options: Any) -> tuple[Any, Any]:
        body = {"method": "prompt-tuning", "num_virtual_tokens": 3, **options}
        base = gpt2()
        spec = job_spec(task="causal-lm", peft=body)
        return wrap(base, spec, minilm_dir(), []), base

    def test_logits_are_those_of_the_text_alone(self) -> None:
        model, _ = self.prompt()
        assert model(input_ids=torch.arange(8)[None]).logits.shape == (1, 8, 9)

    def test_disabled_they_are_those_of_the_base_model(self) -> None:
        model, base = self.prompt()
        model.eval()
        ids = torch.arange(8)[None]
        with torch.no_grad(), model.disable_adapter():
            alone = model(input_ids=ids).logits
        assert torch.equal(alone, base(input_ids=ids).logits)

    def test_embeddings_of_the_vocabulary(self) -> None:
        model, base = self.prompt(prompt_tuning_init="SAMPLE_VOCAB")
        prompt = model.prompt_encoder["default"].embedding.weight
        table = base.get_input_embeddings().weight
        assert all((row == table).all(dim=1).any() for row in prompt)

    def test_embeddings_of_a_text(self) -> None:
        """As many virtual tokens as asked for: the text's, over and over."""
        body = {"method": "prompt-tuning", "num_virtual_tokens": 5}
        body |= {"prompt_tuning_init": "TEXT", "prompt_tuning_init_text": "sum up :"}
        tokenizer = transformers.AutoTokenizer.from_pretrained(minilm_dir())
        base = gpt2(len(tokenizer))
        model: Any = wrap(base, job_spec(task="causal-lm", peft=body), minilm_dir(), [])
        prompt = model.prompt_encoder["default"].embedding.weight
        ids = tokenizer("sum up :")["input_ids"]
        expected = base.get_input_embeddings().weight[(ids * 2)[:5]]
        assert torch.equal(prompt, expected)

    def test_a_projected_prefix_has_a_network(self) -> None:
        body = {"method": "prefix-tuning", "num_virtual_tokens": 3, "prefix_projection": True}
        spec = job_spec(task="causal-lm", peft={**body, "encoder_hidden_size": 5})
        names = trained(wrap(gpt2(), spec, NONE, []))
        assert any("transform.0.weight" in name for name in names)

    def test_a_prefix_of_zeros(self) -> None:
        body = {"method": "prefix-tuning", "num_virtual_tokens": 3, "init_weights": "zero"}
        model: Any = wrap(gpt2(), job_spec(task="causal-lm", peft=body), NONE, [])
        assert not model.prompt_encoder["default"].embedding.weight.any()


SMALL: dict[str, Any] = {"num_hidden_layers": 1, "num_attention_heads": 2, "hidden_size": 8}


class TestHeads:
    """A head that starts at random is trained and saved, whatever the architecture calls it."""

    @pytest.mark.parametrize(
        ("task", "auto", "config", "heads"),
        [
            (
                "text-classification",
                "AutoModelForSequenceClassification",
                transformers.DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=8),
                {"pre_classifier", "classifier"},
            ),
            (
                "text-classification",
                "AutoModelForSequenceClassification",
                transformers.RobertaConfig(**SMALL, intermediate_size=8),
                {"classifier"},
            ),
            (
                "text-classification",
                "AutoModelForSequenceClassification",
                transformers.XLNetConfig(d_model=8, n_layer=1, n_head=2, d_inner=8),
                {"sequence_summary.summary", "logits_proj"},
            ),
            (
                "token-classification",
                "AutoModelForTokenClassification",
                transformers.ElectraConfig(**SMALL, intermediate_size=8, embedding_size=4),
                {"classifier"},
            ),
            (
                {"type": "question-answering", "head": "beam-search"},
                "XLNetForQuestionAnswering",
                transformers.XLNetConfig(d_model=8, n_layer=1, n_head=2, d_inner=8),
                {
                    "start_logits.dense",
                    "end_logits.dense_0",
                    "end_logits.dense_1",
                    "end_logits.LayerNorm",
                    "answer_class.dense_0",
                    "answer_class.dense_1",
                },
            ),
            (
                "masked-lm",
                "AutoModelForMaskedLM",
                transformers.BertConfig(**SMALL, intermediate_size=8),
                # The output layer shares the embeddings' weight, and its new bias is all zeros.
                {"cls.predictions.transform.dense", "cls.predictions.transform.LayerNorm"},
            ),
        ],
    )
    def test_are_in_the_adapter(
        self, tmp_path: Path, task: Any, auto: str, config: Any, heads: set[str]
    ) -> None:
        config.vocab_size = 30
        torch.manual_seed(0)
        transformers.AutoModel.from_config(config).save_pretrained(tmp_path / "base")
        model, new = build.load_model(getattr(transformers, auto), tmp_path / "base", "float32", {})
        assert new
        spec = job_spec(task=task, peft={"method": "lora", "target_modules": "all-linear"})
        made = wrap(model, spec, NONE, new)
        whole = {n.partition(".modules_to_save")[0] for n in trained(made) if "lora" not in n}
        assert whole == heads
        saved = export(made)
        for head in heads:
            assert any(name.startswith(f"base_model.model.{head}.") for name in saved), head


class TestFewBits:
    def loaded(self, bits: int) -> Any:
        body = {"method": "lora", "quantization": {"bits": bits}}
        spec = job_spec(task="question-answering", peft=body)
        auto = transformers.AutoModelForQuestionAnswering
        loading = quantization.loading(spec, auto, minilm_dir(), CPU)
        model, new = build.load_model(auto, minilm_dir(), "float32", {}, **loading)
        return wrap(model, spec, NONE, new)

    def test_eight_train_on_a_cpu(self) -> None:
        torch.manual_seed(0)
        model = self.loaded(8).train()
        body = model.get_base_model().bert.encoder.layer[0].attention.self.query
        assert body.base_layer.weight.dtype == torch.int8
        head = model.get_base_model().qa_outputs
        assert head.modules_to_save["default"].weight.dtype == torch.float32
        optimizer = torch.optim.AdamW([p for p in model.parameters() if p.requires_grad], lr=1e-2)
        ids, losses = torch.arange(100, 116).reshape(2, 8), []
        for _ in range(4):
            at = torch.tensor([3, 4])
            loss = model(input_ids=ids, start_positions=at, end_positions=at).loss
            loss.backward()
            optimizer.step()
            optimizer.zero_grad()
            losses.append(float(loss.detach()))
        assert losses[-1] < losses[0] / 2

    def test_four_bits_have_their_options(self) -> None:
        few = {"bits": 4, "quant_type": "fp4", "double_quant": True, "compute_dtype": "bfloat16"}
        spec = job_spec(task="question-answering", peft={"method": "lora", "quantization": few})
        auto = transformers.AutoModelForQuestionAnswering
        loading = quantization.loading(spec, auto, minilm_dir(), torch.device("cuda", 1))
        assert loading["device_map"] == {"": torch.device("cuda", 1)}
        config = loading["quantization_config"]
        assert config.load_in_4bit
        assert config.bnb_4bit_quant_type == "fp4"
        assert config.bnb_4bit_use_double_quant
        assert config.bnb_4bit_compute_dtype == torch.bfloat16
        assert config.llm_int8_skip_modules == ["qa_outputs"]

    def test_four_need_a_gpu(self) -> None:
        with fails_with(FailureCode.INVALID_OPTION, "is 4, which needs a GPU"):
            self.loaded(4)


class TestIdentity:
    def test_distinguishes_base_weights(self, tmp_path: Path) -> None:
        one, same, other = (
            save_tiny_bert(tmp_path / name, seed=seed)
            for name, seed in (("one", 0), ("same", 0), ("other", 1))
        )
        assert weights.identity(one) == weights.identity(same) != weights.identity(other)
