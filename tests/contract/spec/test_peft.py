"""The section `peft`: peft's own names and defaults, and what it does not go with."""

import dataclasses
from typing import Any

import peft
import pytest
from pydantic import ValidationError

from service.contract.spec.peft import (
    IA3Spec,
    LoraSpec,
    PeftSpec,
    PrefixTuningSpec,
    PromptTuningSpec,
    QuantizationSpec,
)
from tests.contract.factories import job_spec

OURS = {"method", "merge", "quantization"}
LM = {"task": "causal-lm"}
PROMPT = {"method": "prompt-tuning", "num_virtual_tokens": 4}
PREFIX = {"method": "prefix-tuning", "num_virtual_tokens": 4}


def adapter(**options: Any) -> PeftSpec:
    made = job_spec(**LM, peft=options).peft
    assert made is not None
    return made


class TestNamesAndDefaults:
    @pytest.mark.parametrize(
        ("spec", "theirs"),
        [
            (LoraSpec, peft.LoraConfig),
            (IA3Spec, peft.IA3Config),
            (PromptTuningSpec, peft.PromptTuningConfig),
            (PrefixTuningSpec, peft.PrefixTuningConfig),
        ],
    )
    def test_are_those_of_the_installed_peft(self, spec: Any, theirs: Any) -> None:
        known = {field.name: field for field in dataclasses.fields(theirs)}
        for name, field in spec.model_fields.items():
            if name in OURS or field.is_required():
                continue
            other = known[name]
            factory = other.default_factory
            default = other.default if factory is dataclasses.MISSING else factory()
            assert field.get_default(call_default_factory=True) == default, name

    def test_each_method_has_its_own_spec(self) -> None:
        assert isinstance(adapter(method="lora"), LoraSpec)
        assert isinstance(adapter(method="ia3"), IA3Spec)
        assert isinstance(adapter(**PROMPT), PromptTuningSpec)
        assert isinstance(adapter(**PREFIX), PrefixTuningSpec)

    def test_survives_json(self) -> None:
        spec = job_spec(
            **LM,
            peft={"method": "lora", "target_modules": ".*q", "rank_pattern": {"q": 2}},
        )
        assert type(spec).model_validate_json(spec.model_dump_json()) == spec

    def test_places_that_are_taken(self) -> None:
        assert adapter(**PROMPT).virtual_tokens == adapter(**PREFIX).virtual_tokens == 4
        assert adapter(method="lora").virtual_tokens == 0

    def test_only_what_is_merged_is_whole(self) -> None:
        assert adapter(method="lora", merge=True).merges
        assert not any(adapter(**body).merges for body in ({"method": "ia3"}, PREFIX))


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"method": "ia3", "use_dora": True}, "Extra inputs"),
        ({**PROMPT, "merge": True}, "Extra inputs"),
        ({"method": "prompt-tuning"}, "Field required"),
        ({"method": "lora", "target_modules": "("}, "not a valid regular expression"),
        ({"method": "lora", "target_modules": []}, "at least 1"),
        ({"method": "lora", "rank_pattern": {"q": 0}}, "greater than or equal"),
        (
            {"method": "lora", "layers_to_transform": [0], "target_modules": "all-linear"},
            "as a list of names",
        ),
        ({"method": "lora", "merge": True, "quantization": {"bits": 8}}, "needs the base weights"),
        ({"method": "lora", "use_dora": True, "lora_bias": True}, "exclude each other"),
        ({"method": "lora", "r": 3, "init_lora_weights": "orthogonal"}, "even ranks"),
        ({"method": "lora", "quantization": {"bits": 2}}, "4 or 8"),
        (
            {"method": "lora", "quantization": {"bits": 8, "quant_type": "nf4"}},
            "`quant_type` need `bits: 4`",
        ),
        ({"method": "ia3", "target_modules": ["q"]}, "go together"),
        (
            {"method": "ia3", "target_modules": ["q"], "feedforward_modules": ["w"]},
            "names w, which",
        ),
        ({**PROMPT, "prompt_tuning_init": "TEXT"}, "go together"),
        ({**PROMPT, "prompt_tuning_init_text": "Sum up:"}, "go together"),
        ({**PREFIX, "encoder_hidden_size": 8}, "needs `prefix_projection`"),
        ({**PREFIX, "init_weights": "zero", "prefix_projection": True}, "exclude each other"),
    ],
)
def test_faults_of_the_section(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        job_spec(**LM, peft=options)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"task": "masked-lm", "peft": PROMPT}, "does not exist for `masked-lm`"),
        ({"task": "masked-lm", "peft": PREFIX}, "does not exist for `masked-lm`"),
        (
            {"task": {"type": "question-answering", "head": "beam-search"}, "peft": PREFIX},
            "does not exist for `question-answering/beam-search`",
        ),
        ({"task": "question-answering", "peft": PROMPT}, "would no longer match its tokens"),
        ({"task": "token-classification", "peft": PROMPT}, "would no longer match"),
        ({"task": "reward", "peft": PROMPT}, "where the reward is read, would no longer be found"),
        (
            {"task": {"type": "causal-lm", "separate_documents": True}, "peft": PREFIX},
            "would separate the documents",
        ),
        (
            {**LM, "peft": PREFIX, "training": {"gradient_checkpointing": True}},
            "`training.activation_checkpointing` excludes",
        ),
        (
            {
                **LM,
                "peft": {"method": "lora"},
                "model": {"config": {"model_type": "gpt2"}, "tokenizer_name": "a/b"},
            },
            "`model.config` creates one from scratch",
        ),
        (
            {
                **LM,
                "peft": {"method": "lora", "quantization": {"bits": 8}},
                "training": {"bf16_full_eval": True},
            },
            "cannot change the dtype",
        ),
        (
            {
                **LM,
                "peft": {"method": "lora", "quantization": {"bits": 4}},
                "resources": {"gpus": 0},
            },
            "on a CPU use 8 bits",
        ),
    ],
)
def test_contradictions_to_the_rest(body: dict[str, Any], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        job_spec(**body)


def test_what_goes_together() -> None:
    for task in ("causal-lm", "chat", "preference", "summarization", "text-classification"):
        assert job_spec(task=task, peft=PROMPT).peft
    for task in ("reward", "question-answering", "token-classification", "translation"):
        assert job_spec(task=task, peft=PREFIX).peft
    beam_search = {"type": "question-answering", "head": "beam-search"}
    for method in ("lora", "ia3"):
        assert job_spec(task="masked-lm", peft={"method": method}).peft
        assert job_spec(task=beam_search, peft={"method": method}).peft


def test_four_bits_have_choices() -> None:
    whole = {"bits": 4, "quant_type": "fp4", "double_quant": True, "compute_dtype": "bfloat16"}
    made = adapter(method="lora", quantization=whole)
    assert isinstance(made, LoraSpec)
    assert made.quantization == QuantizationSpec.model_validate(whole)
