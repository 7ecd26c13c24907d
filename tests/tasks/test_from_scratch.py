"""A model without weights: `model.config` and a tokenizer."""

from pathlib import Path
from typing import Any

import pytest
import transformers

from service.contract.failures import FailureCode, StageError
from tests.support.models import minilm_dir, save_tiny_gpt2
from tests.tasks.stages import StagedJob, write_rows
from tests.training.support.jobs import PLAIN, fails_with

OVERRIDES = {"n_layer": 2, "n_head": 2, "n_embd": 32, "n_positions": 32}


@pytest.fixture
def body(tmp_path: Path) -> dict[str, Any]:
    gpt2 = save_tiny_gpt2(tmp_path / "gpt2")
    (gpt2 / "model.safetensors").unlink()
    rows = [{"text": "the report of the water board was read\n"}] * 40
    return {
        "task": {"type": "causal-lm", "block_size": 16},
        "model": {
            "config": {"model_type": "gpt2", "config_overrides": OVERRIDES},
            "tokenizer_name": str(gpt2),
        },
        "dataset": {"source": "path", "train": write_rows(tmp_path / "a.jsonl", rows)},
        "training": PLAIN
        | {"use_cpu": True, "logging_steps": 1, "max_steps": 2, "learning_rate": 0.0},
    }


def job(tmp_path: Path, body: dict[str, Any], name: str = "home", **training: Any) -> StagedJob:
    home = tmp_path / name
    home.mkdir()
    return StagedJob(home, body | {"training": body["training"] | training})


class TestModel:
    def test_has_the_config_and_the_tokenizers_vocabulary(
        self, tmp_path: Path, body: dict[str, Any]
    ) -> None:
        made = job(tmp_path, body)
        result, recorder = made.train()
        output = made.workspace / str(result.output_dir)
        config = transformers.AutoConfig.from_pretrained(output)
        assert {name: getattr(config, name) for name in OVERRIDES} == OVERRIDES
        tokenizer = transformers.AutoTokenizer.from_pretrained(output)
        assert config.vocab_size == len(tokenizer)
        assert (config.bos_token_id, config.eos_token_id, config.pad_token_id) == (0, 0, None)
        model = transformers.AutoModelForCausalLM.from_pretrained(output)
        count = sum(parameter.numel() for parameter in model.parameters())
        messages = [getattr(event, "message", "") for event in recorder.events]
        assert (
            f"A model from scratch: {count:,} weights, initialized from `training.seed`" in messages
        )

    def test_is_drawn_from_the_seed(self, tmp_path: Path, body: dict[str, Any]) -> None:
        digests = [
            job(tmp_path, body, name, seed=seed).train()[0].weights_sha256
            for name, seed in (("a", 1), ("b", 1), ("c", 2))
        ]
        assert digests[0] == digests[1] != digests[2]

    def test_the_block_is_bounded_by_its_positions(
        self, tmp_path: Path, body: dict[str, Any]
    ) -> None:
        body["task"] = {"type": "causal-lm", "block_size": 33}
        with pytest.raises(StageError, match="position table holds 32"):
            job(tmp_path, body).prepare()

    def test_a_masked_model(self, tmp_path: Path, body: dict[str, Any]) -> None:
        body["task"] = {"type": "masked-lm", "max_seq_length": 16}
        body["model"] = {
            "config": {
                "model_type": "bert",
                "config_overrides": {"hidden_size": 16, "num_hidden_layers": 1}
                | {"num_attention_heads": 2, "intermediate_size": 16},
            },
            "tokenizer_name": str(minilm_dir()),
        }
        result, _ = job(tmp_path, body).train()
        assert result.steps == 2


class TestFaults:
    @pytest.mark.parametrize(
        ("config", "code", "message"),
        [
            (
                {"model_type": "distillbert"},
                FailureCode.UNSUPPORTED_ARCHITECTURE,
                "There is no model of type 'distillbert'; did you mean 'distilbert'?",
            ),
            (
                {"model_type": "gpt2", "config_overrides": {"n_layers": 2}},
                FailureCode.INVALID_OPTION,
                "has 'n_layers', which is not a field of configurations of type 'gpt2'; did you "
                "mean 'n_layer'?",
            ),
            (
                {"model_type": "gpt2", "config_overrides": {"n_layer": "two"}},
                FailureCode.INVALID_OPTION,
                "`model.config.config_overrides` does not fit",
            ),
            (
                {"model_type": "gpt2", "config_overrides": {"n_embd": 30, "n_head": 4}},
                FailureCode.UNSUPPORTED_ARCHITECTURE,
                "Creating a model from `model.config` is not possible: ValueError: ",
            ),
            (
                {"model_type": "vit"},
                FailureCode.UNSUPPORTED_ARCHITECTURE,
                "A model of type 'vit' has no head for causal-lm",
            ),
            (
                {"model_type": "gpt2", "config_overrides": {**OVERRIDES, "vocab_size": 10}},
                FailureCode.INVALID_OPTION,
                "the model embeds only 10",
            ),
        ],
    )
    @pytest.mark.filterwarnings("ignore")  # transformers' own, about the faulty configuration
    def test_before_any_training(
        self,
        tmp_path: Path,
        body: dict[str, Any],
        config: dict[str, Any],
        code: FailureCode,
        message: str,
    ) -> None:
        body["model"]["config"] = config
        with fails_with(code) as raised:
            job(tmp_path, body).prepare()
        assert message in str(raised.value)
