"""The last step of a training with an adapter: what `prepare` accepts is merged, saved and loaded
again with the same logits; what peft cannot merge is refused there."""

from pathlib import Path
from typing import Any, Final

import peft
import pytest
import torch
import transformers

from service.contract.failures import FailureCode, StageError
from tests.contract.factories import job_spec
from tests.training.support.jobs import fails_with
from worker.training import build
from worker.training.adapters import adapter
from worker.training.adapters.checks import check

# peft warns of its own bias (`lora_bias`), and of tied weights that are not merged.
pytestmark = pytest.mark.filterwarnings("ignore")

VOCABULARY: Final = 40
SHAPE: Final[dict[str, Any]] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 2,
    "intermediate_size": 24,
    "vocab_size": VOCABULARY,
    "max_position_embeddings": 64,
    "pad_token_id": 0,
}
T5: Final[dict[str, Any]] = {
    "d_model": 16,
    "d_kv": 8,
    "d_ff": 24,
    "num_layers": 2,
    "num_heads": 2,
    "vocab_size": VOCABULARY,
    "decoder_start_token_id": 0,
}
LM: Final = "AutoModelForCausalLM"
CLASSES: Final = "AutoModelForSequenceClassification"
MASKED: Final = "AutoModelForMaskedLM"
SEQ2SEQ: Final = "AutoModelForSeq2SeqLM"

MODELS: Final[dict[str, tuple[Any, str, str]]] = {
    "llama": (
        transformers.LlamaConfig(**SHAPE, tie_word_embeddings=False),
        LM,
        "causal-lm",
    ),
    "llama with biases": (
        transformers.LlamaConfig(**SHAPE, attention_bias=True, mlp_bias=True),
        LM,
        "causal-lm",
    ),
    "gpt2": (
        transformers.GPT2Config(n_embd=16, n_layer=2, n_head=2, vocab_size=VOCABULARY),
        LM,
        "causal-lm",
    ),
    "mixtral": (
        transformers.MixtralConfig(**SHAPE, num_key_value_heads=2, num_local_experts=4),
        LM,
        "causal-lm",
    ),
    "mamba": (
        transformers.MambaConfig(
            hidden_size=16, num_hidden_layers=2, state_size=4, vocab_size=VOCABULARY
        ),
        LM,
        "causal-lm",
    ),
    "bert": (transformers.BertConfig(**SHAPE), CLASSES, "text-classification"),
    "masked": (transformers.BertConfig(**SHAPE), MASKED, "masked-lm"),
    "reward": (
        transformers.LlamaConfig(**SHAPE | {"num_labels": 1}),
        CLASSES,
        "reward",
    ),
    "t5": (
        transformers.T5Config(**T5),
        SEQ2SEQ,
        "summarization",
    ),
}
LORA: Final[dict[str, Any]] = {"method": "lora", "r": 2, "target_modules": "all-linear"}
EMBEDDING: Final = r".*(embed_tokens|wte|word_embeddings|shared|backbone\.embeddings)"
OPTIONS: Final[dict[str, dict[str, Any]]] = {
    "plain": {},
    "rslora": {"use_rslora": True},
    "dora": {"use_dora": True},
    "lora_bias": {"lora_bias": True},
    "bias": {"bias": "all"},
    "bias of lora": {"bias": "lora_only", "lora_bias": True},
    "orthogonal": {"init_lora_weights": "orthogonal"},
    "ranks": {"rank_pattern": {".*0.*": 4}, "alpha_pattern": {".*1.*": 2}},
    "embedding": {"target_modules": EMBEDDING},
    "dora on the embedding": {"target_modules": EMBEDDING, "use_dora": True},
    "bias on the embedding": {"target_modules": EMBEDDING, "lora_bias": True},
    "convolution": {"target_modules": ["conv1d"]},
    "bias on the convolution": {"target_modules": ["conv1d"], "lora_bias": True},
    "saved whole": {"modules_to_save": ["norm"]},
    "embeddings whole": {"modules_to_save": ["embedding", "head"]},
    "embedding whole": {"modules_to_save": ["embedding"]},
    "head whole": {"modules_to_save": ["head"]},
    "lora on the head": {"target_modules": r".*(lm_head|predictions\.decoder)"},
}
NAMES: Final[dict[str, dict[str, str]]] = {
    "llama": {"norm": "norm", "embedding": "embed_tokens", "head": "lm_head"},
    "gpt2": {"norm": "ln_f", "embedding": "wte", "head": "lm_head"},
    "mamba": {"norm": "norm_f", "embedding": "embeddings", "head": "lm_head"},
    "bert": {"norm": "LayerNorm", "embedding": "word_embeddings", "head": "classifier"},
    "masked": {"norm": "LayerNorm", "embedding": "word_embeddings", "head": "decoder"},
    "reward": {"norm": "norm", "embedding": "embed_tokens", "head": "score"},
    "t5": {"norm": "final_layer_norm", "embedding": "shared", "head": "lm_head"},
}
BASE: Final = "because the base layer has no bias"
TIED: Final = "shares its weight with"
UNFIT: Final = "does not fit the model"
ABSENT: Final = "which matches no module"
IDS: Final = torch.tensor([[5, 9, 3, 17, 8, 30, 4, 22, 11], [6, 6, 31, 12, 9, 3, 14, 25, 39]])


def refusal(model: str, option: str) -> str | None:
    """Why the combination cannot be merged; None if it must work."""
    if model == "mamba" and option.endswith("whole"):  # all that is linear is adapted, too
        return UNFIT
    if "convolution" in option:
        return UNFIT if model == "mamba" else ABSENT
    if "embedding" in option:
        if option.startswith("bias"):
            return UNFIT
        return TIED if model == "t5" else None
    if "head" in option:
        if option.startswith("lora") and model in ("bert", "reward"):
            return ABSENT
        return TIED if model == "t5" else None
    if model == "mamba":  # its kernels read `out_proj`'s weight themselves
        return UNFIT
    if model == "mixtral" and option in ("dora", "lora_bias", "bias of lora", "orthogonal"):
        return UNFIT  # experts in one tensor
    if "lora_bias" in OPTIONS[option] and model in ("llama", "reward", "t5"):
        return BASE
    return None


@pytest.fixture(scope="module")
def bases(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """The base models; those with a new head are saved without it."""
    folders = {}
    for name, (config, auto, _) in MODELS.items():
        torch.manual_seed(0)
        model = getattr(transformers, auto).from_config(config)
        folders[name] = tmp_path_factory.mktemp("base")
        (model.base_model if auto == CLASSES else model).save_pretrained(folders[name])
    return folders


def logits(model: Any) -> torch.Tensor:
    """(rows, length or 1, vocabulary or labels)"""
    more = {"decoder_input_ids": IDS[:, :5]} if model.config.is_encoder_decoder else {}
    with torch.no_grad():
        found: torch.Tensor = model.eval()(input_ids=IDS, **more).logits
    return found


def spec_of(model: str, option: str, *, merge: bool) -> Any:
    options = {**LORA, **OPTIONS[option], "merge": merge}
    if "modules_to_save" in options:
        names = NAMES.get(model, NAMES["llama"])
        options["modules_to_save"] = [names[part] for part in options["modules_to_save"]]
    return job_spec(task=MODELS[model][2], peft=options)


def on_meta(model: str) -> Any:
    config, auto, _ = MODELS[model]
    with torch.device("meta"):
        return getattr(transformers, auto).from_config(config)


def trained(model: str, spec: Any, base: Path) -> Any:
    """As a training leaves it: all that trains is changed."""
    auto = getattr(transformers, MODELS[model][1])
    torch.manual_seed(0)
    plain, new = build.load_model(auto, base, "float32", {})
    made = adapter.wrap(plain, spec, base, new)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in made.parameters():
            if parameter.requires_grad:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.05)
    return made


def combinations(*fast: str) -> list[Any]:
    """All of them; those of models other than Llama are heavy, except the options `fast`."""
    return [
        pytest.param(
            model, option, marks=[] if model == "llama" or option in fast else [pytest.mark.heavy]
        )
        for model in MODELS
        for option in OPTIONS
    ]


class TestSavedAndLoaded:
    @pytest.mark.parametrize(("model", "option"), combinations("lora_bias", "embeddings whole"))
    def test_merged_it_has_the_same_logits(
        self, bases: dict[str, Path], tmp_path: Path, model: str, option: str
    ) -> None:
        spec, why = spec_of(model, option, merge=True), refusal(model, option)
        if why is not None:
            with fails_with(FailureCode.INVALID_OPTION, why):
                check(on_meta(model), spec, pads_left=True)
            return
        check(on_meta(model), spec, pads_left=True)
        made = trained(model, spec, bases[model])
        expected = logits(made)
        adapter.merge(made).save_pretrained(tmp_path)
        whole, report = getattr(transformers, MODELS[model][1]).from_pretrained(
            tmp_path, output_loading_info=True
        )
        assert not report["missing_keys"]
        assert not report["unexpected_keys"]
        torch.testing.assert_close(logits(whole), expected, atol=2e-5, rtol=0)

    @pytest.mark.parametrize(("model", "option"), combinations())
    def test_so_has_the_adapter_alone(
        self, bases: dict[str, Path], tmp_path: Path, model: str, option: str
    ) -> None:
        spec = spec_of(model, option, merge=False)
        if refusal(model, option) in (UNFIT, ABSENT):
            with pytest.raises(StageError):
                check(on_meta(model), spec, pads_left=True)
            return
        check(on_meta(model), spec, pads_left=True)
        made = trained(model, spec, bases[model])
        adapter.save(made, tmp_path, spec, None)
        base = getattr(transformers, MODELS[model][1]).from_pretrained(bases[model])
        loaded = peft.PeftModel.from_pretrained(base, str(tmp_path))
        torch.testing.assert_close(logits(loaded), logits(made), atol=2e-5, rtol=0)


class TestOfAnEarlierRelease:
    def test_the_failure_explains_how_to_get_the_adapter(self, bases: dict[str, Path]) -> None:
        """A training that was accepted before `prepare` knew, and its promotion."""
        made = trained("llama", spec_of("llama", "lora_bias", merge=True), bases["llama"])
        with pytest.raises(StageError) as caught:
            adapter.merge(made)
        failure = caught.value.failure
        assert failure.code is FailureCode.INVALID_OPTION
        assert failure.details == {"option": "peft.merge"}
        assert failure.message == (
            "`peft.merge` cannot be true: Impossible to merge LoRA with `lora_bias=True` because "
            "the base layer has no bias. Submit the job with `peft.merge: false`, which publishes "
            "the adapter. If it was trained already, name a checkpoint before its last step in "
            "`training.resume_from`, and only the steps after it are repeated"
        )

    def test_a_lack_of_memory_stays_what_it_is(self) -> None:
        class Full(torch.nn.Linear):
            def merge_and_unload(self, *, safe_merge: bool) -> None:
                raise torch.OutOfMemoryError("CUDA out of memory")

            def get_base_model(self) -> torch.nn.Module:
                return self

        with pytest.raises(torch.OutOfMemoryError):
            adapter.merge(Full(1, 1))  # type: ignore[arg-type]
