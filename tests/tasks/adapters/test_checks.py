"""What `prepare` finds out about an adapter before a GPU is taken."""

import time
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import Notice
from tests.contract.factories import job_spec
from tests.support.models import save_tiny_gpt2
from tests.tasks.stages import StagedJob, job_of
from worker.training.adapters import checks
from worker.training.adapters.checks import check

LISTED = (
    "The model has linear modules c_proj (4), c_attn (2), c_fc (2), lm_head (1); "
    "other modules wte (1), wpe (1)"
)
PROMPT = {"method": "prompt-tuning", "num_virtual_tokens": 4}
PREFIX = {"method": "prefix-tuning", "num_virtual_tokens": 4}


def on_meta(auto: str, config: Any) -> Any:
    with torch.device("meta"):
        return getattr(transformers, auto).from_config(config)


def gpt2(auto: str = "AutoModelForCausalLM") -> Any:
    return on_meta(auto, transformers.GPT2Config(n_embd=8, n_layer=2, n_head=2, vocab_size=9))


def checked(model: Any, adapter: dict[str, Any], task: str = "causal-lm") -> list[str]:
    return check(model, job_spec(task=task, peft=adapter), pads_left=False)


def refused(*arguments: Any) -> tuple[str, str]:
    """Option and message."""
    with pytest.raises(StageError) as caught:
        checked(*arguments)
    failure = caught.value.failure
    assert failure.code is FailureCode.INVALID_OPTION
    return failure.details["option"], failure.message


class TestNames:
    @pytest.mark.parametrize(
        ("option", "value", "named"),
        [
            ("target_modules", ["c_attn", "c_atn"], "'c_atn'"),
            ("target_modules", ".*q_proj", "'.*q_proj'"),
            ("target_modules", ["attn"], "'attn'"),  # a module, but of no kind that adapts
            ("exclude_modules", ["q"], "'q'"),
            ("modules_to_save", ["pooler"], "'pooler'"),
        ],
    )
    def test_one_that_meets_nothing_is_refused_with_a_list(
        self, option: str, value: Any, named: str
    ) -> None:
        found, message = refused(gpt2(), {"method": "lora", option: value})
        assert found == f"peft.{option}"
        assert message == f"`peft.{option}` has {named}, which matches no module. {LISTED}"

    @pytest.mark.parametrize("option", ["target_modules", "exclude_modules"])
    def test_a_pattern_that_takes_for_ever_is_refused(
        self, monkeypatch: pytest.MonkeyPatch, option: str
    ) -> None:
        """The attack: `prepare` computed until a user cancelled the job."""
        monkeypatch.setattr(checks, "_PATTERN_SECONDS", 0.5)
        model = gpt2()
        model.register_module("a" * 40 + "b", torch.nn.Linear(1, 1))
        begun = time.monotonic()
        found, message = refused(model, {"method": "lora", option: "(a+)+$"})
        assert time.monotonic() - begun < 10
        assert found == f"peft.{option}"
        assert "takes more than 0.5 s" in message

    def test_without_a_default_for_the_model_names_are_asked_for(self) -> None:
        config = transformers.DistilBertConfig(dim=8, n_layers=1, n_heads=2, hidden_dim=8)
        model = on_meta("AutoModelForMaskedLM", config)
        option, message = refused(model, {"method": "lora"}, "masked-lm")
        assert option == "peft.target_modules"
        assert "no default for models of type 'distilbert': give `all-linear` or names" in message
        assert "q_lin (1)" in message

    def test_patterns_and_layers_that_meet_nothing(self) -> None:
        lora = {"method": "lora"}
        assert refused(gpt2(), {**lora, "rank_pattern": {"c_fc": 2}}) == (
            "peft.rank_pattern",
            "`peft.rank_pattern` has 'c_fc', which matches none of the adapted modules: c_attn",
        )
        option, message = refused(
            gpt2(), {**lora, "layers_to_transform": [1, 2], "target_modules": ["c_attn"]}
        )
        assert option == "peft.layers_to_transform"
        assert "has 2, but" in message

    @pytest.mark.parametrize(
        "adapter",
        [
            {"method": "lora"},
            {"method": "lora", "target_modules": "all-linear", "use_dora": True},
            {
                "method": "lora",
                "target_modules": r".*\.h\.0\..*c_attn",
                "alpha_pattern": {"c_attn": 2},
            },
            {"method": "ia3"},
            PROMPT,
            {**PROMPT, "prompt_tuning_init": "SAMPLE_VOCAB"},
            {**PREFIX, "prefix_projection": True},
        ],
    )
    def test_what_fits_has_nothing_to_report(self, adapter: dict[str, Any]) -> None:
        assert checked(gpt2(), adapter) == []


class TestSharedWeights:
    def test_of_the_embeddings_are_untied(self) -> None:
        for where in ({"target_modules": ["lm_head"]}, {"modules_to_save": ["wte"]}):
            checked(gpt2(), {"method": "lora", "merge": True, **where})

    def test_of_more_modules_cannot_be_merged(self) -> None:
        config = transformers.T5Config(d_model=8, d_kv=4, d_ff=8, num_layers=1, num_heads=2)
        model = on_meta("AutoModelForSeq2SeqLM", config)
        lora = {"method": "lora", "merge": True, "modules_to_save": ["lm_head"]}
        option, message = refused(model, lora, "summarization")
        assert option == "peft.merge"
        assert "lm_head shares its weight with decoder.embed_tokens, " in message
        assert "models of type 't5' cannot have different ones there" in message

    def test_peft_s_own_warning_is_handed_on(self) -> None:
        (warning,) = checked(gpt2(), {"method": "lora", "modules_to_save": ["lm_head"]})
        assert "tie_word_embeddings" in warning


class TestPrompts:
    def test_a_prefix_needs_a_cache(self) -> None:
        config = transformers.DebertaV2Config(
            hidden_size=8, num_hidden_layers=1, num_attention_heads=2, intermediate_size=8
        )
        model = on_meta("AutoModelForQuestionAnswering", config)
        option, message = refused(model, PREFIX, "question-answering")
        assert option == "peft.method"
        assert "does not accept keys and values" in message

    def test_a_prompt_must_not_hide_where_the_text_ends(self) -> None:
        model = gpt2("AutoModelForSequenceClassification")
        assert (
            "it would classify by the padding" in refused(model, PROMPT, "text-classification")[1]
        )
        spec = job_spec(task="text-classification", peft=PROMPT)
        model = gpt2("AutoModelForSequenceClassification")
        assert check(model, spec, pads_left=True) == []


def prepared(tmp_path: Path, task: Any, base: Path, adapter: dict[str, Any]) -> StagedJob:
    rows = [{"text": "the report of the water board was read by all who were there"}] * 20
    job = job_of(tmp_path, task, base, {"train": rows}, peft=adapter)
    job.prepare()
    return job


class TestInPrepare:
    def test_virtual_tokens_take_places_from_the_text(self, tmp_path: Path) -> None:
        base = save_tiny_gpt2(tmp_path / "base")  # 64 positions
        job = prepared(tmp_path, "causal-lm", base, {**PROMPT, "num_virtual_tokens": 24})
        counts = job.prepared.splits["train"]
        assert counts["tokens"] - counts["dropped_tokens"] == 40 * counts["features"]

    def test_more_of_them_than_there_is_room_for(self, tmp_path: Path) -> None:
        base = save_tiny_gpt2(tmp_path / "base")
        with pytest.raises(StageError, match="but the model has only 64 positions"):
            prepared(tmp_path, "causal-lm", base, {**PROMPT, "num_virtual_tokens": 64})
        task = {"type": "causal-lm", "block_size": 32}
        with pytest.raises(StageError, match="holds 24 in addition to 40 virtual tokens"):
            prepared(tmp_path, task, base, {**PROMPT, "num_virtual_tokens": 40})

    def test_names_are_checked_there_and_warnings_reported(self, tmp_path: Path) -> None:
        task = {"type": "causal-lm", "block_size": 16}
        base = save_tiny_gpt2(tmp_path / "base")
        with pytest.raises(StageError, match=r"`peft\.target_modules` has 'qkv'"):
            prepared(tmp_path, task, base, {"method": "lora", "target_modules": ["qkv"]})
        adapter = {"method": "lora", "modules_to_save": ["lm_head"]}
        job = prepared(tmp_path, task, base, adapter)
        messages = [event.message for event in job.notices if isinstance(event, Notice)]
        assert any(message.startswith("peft says: Model has") for message in messages)
        assert not any("fan_in" in message for message in messages)
