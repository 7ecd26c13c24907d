"""What texts are generated in, in an evaluation of a job in bfloat16."""

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from accelerate import Accelerator
from accelerate.state import AcceleratorState
from peft import LoraConfig, get_peft_model
from transformers import GenerationConfig, T5Config, T5ForConditionalGeneration

from service.contract.spec.training import TrainingSpec
from tests.training.support.jobs import TinyObjective, rows, tiny_model
from worker.tasks.base import PreparedSplit
from worker.training.adapters.adapter import known_warnings
from worker.training.distributed.ranks import Ranks
from worker.training.evaluation.evaluator import Evaluator
from worker.training.objective import Batch

DATA = rows(2, length=6)


@pytest.fixture
def bf16() -> Iterator[Accelerator]:
    AcceleratorState._reset_state(reset_partial_state=True)
    yield Accelerator(cpu=True, mixed_precision="bf16")
    AcceleratorState._reset_state(reset_partial_state=True)


def generate(model: Any, batch: Batch) -> torch.Tensor:
    config = GenerationConfig(
        max_new_tokens=2, min_new_tokens=2, pad_token_id=0, decoder_start_token_id=0
    )
    tokens: torch.Tensor = model.generate(
        input_ids=batch["input_ids"],
        attention_mask=batch["attention_mask"],
        generation_config=config,
    )
    return tokens


def dtypes(accelerator: Accelerator, model: Any, module: torch.nn.Module) -> set[torch.dtype]:
    """Of what `module` gives while texts are generated."""
    seen: set[torch.dtype] = set()
    module.register_forward_hook(lambda _module, _inputs, output: seen.add(output.dtype))
    objective = TinyObjective({"train": PreparedSplit(DATA, DATA)})
    prepared = accelerator.prepare_model(model.eval(), evaluation_mode=True)
    evaluator = Evaluator(accelerator, prepared, objective, TrainingSpec(), lambda: None, Ranks())
    list(evaluator.forward(DATA, objective.collate, generate, generates=True))
    return seen


class TestGeneration:
    def test_of_a_plain_model(self, bf16: Accelerator) -> None:
        model: Any = tiny_model()
        assert dtypes(bf16, model, model.transformer.h[0].mlp.c_fc) == {torch.bfloat16}

    def test_under_an_adapter(self, bf16: Accelerator) -> None:
        config = LoraConfig(task_type="CAUSAL_LM", target_modules=["c_attn"], fan_in_fan_out=True)
        with known_warnings():
            model: Any = get_peft_model(tiny_model(), config)
        inner = model.get_base_model().transformer.h[0].mlp.c_fc
        assert dtypes(bf16, model, inner) == {torch.bfloat16}

    def test_in_an_encoder(self, bf16: Accelerator) -> None:
        config = T5Config(  # type: ignore[call-arg]
            vocab_size=48, d_model=16, d_kv=8, d_ff=16, num_layers=1, num_heads=2,
            decoder_start_token_id=0,
        )  # fmt: skip
        model: Any = T5ForConditionalGeneration(config)
        inner = model.encoder.block[0].layer[0].SelfAttention.q
        assert dtypes(bf16, model, inner) == {torch.bfloat16}
