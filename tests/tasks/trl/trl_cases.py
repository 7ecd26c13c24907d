"""Trainings that TRL and our stages are both given: a tiny Llama or Mixtral, conversations, and
pairs.

`tests/tasks/trl/trl_losses.json` has TRL's numbers; `python -m benchmarks.trl losses --record`
writes them anew.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from tests.support.models import byte_level_tokenizer, made_once, saved
from tests.tasks.stages import job_of

GOLDEN: Final = Path(__file__).with_name("trl_losses.json")
STEPS: Final = 30
BATCH_SIZE: Final = 2
LENGTH: Final = 128
"""Tokens of a packed example."""
LEARNING_RATE: Final = 2e-3
SPECIALS: Final = ("<pad>", "<|im_start|>", "<|im_end|>")

TEMPLATE: Final = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' }}"
    "{% if message['role'] == 'assistant' %}"
    "{% generation %}{{ message['content'] + '<|im_end|>\\n' }}{% endgeneration %}"
    "{% else %}{{ message['content'] + '<|im_end|>\\n' }}{% endif %}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)
"""ChatML. What follows the opening of the assistant's turn is generated, up to its last newline, so
that a completion has the same tokens by the marks and by its prompt."""

THINGS: Final = ("apples", "marbles", "stamps", "books", "coins")
NAMES: Final = ("Ada", "Bela", "Chidi", "Dina")

Row = dict[str, Any]


@dataclass(frozen=True)
class Case:
    trainer: str
    """`SFTTrainer` or `DPOTrainer`."""
    options: Mapping[str, Any]
    """Of TRL's config."""
    task: Mapping[str, Any]
    """Of ours."""
    names: tuple[str, ...]
    """The numbers of a step that are compared."""
    experts: bool = False
    """A Mixtral, whose config asks for the load-balancing loss."""


REWARDS: Final = ("loss", "rewards/chosen", "rewards/rejected", "rewards/margins")


def _preference(loss_type: str, beta: float) -> Case:
    return Case(
        "DPOTrainer",
        {"loss_type": [loss_type], "beta": beta, "max_length": 256},
        {"type": "preference", "loss_type": loss_type, "beta": beta, "max_length": 256},
        REWARDS,
    )


_LLAMAS: Final[dict[str, Case]] = {
    "sft": Case(
        "SFTTrainer",
        {"assistant_only_loss": True, "packing": True, "max_length": LENGTH},
        {"type": "chat", "packing": "bfd", "max_length": LENGTH},
        ("loss",),
    ),
    "sigmoid": _preference("sigmoid", 0.1),
    "ipo": _preference("ipo", 0.1),
    "apo_zero": _preference("apo_zero", 0.1),
}
CASES: Final[dict[str, Case]] = _LLAMAS | {
    f"{name}_experts": replace(_LLAMAS[name], experts=True) for name in ("sft", "sigmoid")
}


def _sum(number: int) -> tuple[str, str, str]:
    """A question, its answer, and a wrong one."""
    name, thing = NAMES[number % len(NAMES)], THINGS[number % len(THINGS)]
    first, second = 2 + number * 7 % 41, 3 + number * 11 % 37
    asked = f"{name} has {first} {thing} and finds {second}."
    if number % 3 == 0:
        asked += f" How many {thing} does {name} have now?"
    worked = f"{first} + {second} = {first + second}" + ("." if number % 2 else f" {thing}.")
    return asked, f"{worked}\n#### {first + second}", f"{first}\n#### {first + 1}"


def conversations(count: int) -> list[Row]:
    """Of one turn each or of two, some with a system prompt; all of at most LENGTH tokens."""
    rows = []
    for number in range(count):
        asked, answer, _ = _sum(number)
        turns = [{"role": "user", "content": asked}, {"role": "assistant", "content": answer}]
        if number % 4 == 1:
            turns.insert(0, {"role": "system", "content": "Be brief."})
        if number % 5 == 2:
            turns += [
                {"role": "user", "content": "Sure?"},
                {"role": "assistant", "content": "Yes."},
            ]
        rows.append({"messages": turns})
    return rows


def pairs(count: int) -> list[Row]:
    rows = []
    for number in range(count):
        asked, chosen, rejected = _sum(number)
        rows.append(
            {
                "prompt": [{"role": "user", "content": asked}],
                "chosen": [{"role": "assistant", "content": chosen}],
                "rejected": [{"role": "assistant", "content": rejected}],
            }
        )
    return rows


def rows_of(case: Case) -> list[Row]:
    """Enough for STEPS batches within an epoch."""
    return conversations(200) if case.trainer == "SFTTrainer" else pairs(STEPS * BATCH_SIZE)


@made_once
def save_model(folder: Path, case: Case) -> Path:
    """A Llama or Mixtral of 2 layers, 32 wide, with grouped queries and tied embeddings, and a
    byte-level tokenizer of 400 tokens with the chat template above."""
    import torch
    from transformers import AutoModelForCausalLM, LlamaConfig, MixtralConfig

    texts = ["user\nassistant\nsystem\n", *(part for number in range(60) for part in _sum(number))]
    tokenizer = byte_level_tokenizer(
        texts * 2, list(SPECIALS), pad_token=SPECIALS[0], eos_token=SPECIALS[2]
    )
    tokenizer.chat_template = TEMPLATE
    torch.manual_seed(0)
    experts = {"num_local_experts": 4, "output_router_logits": True, "router_aux_loss_coef": 0.5}
    options: dict[str, Any] = experts if case.experts else {}
    config = (MixtralConfig if case.experts else LlamaConfig)(
        **options,
        vocab_size=len(tokenizer),
        hidden_size=32,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        max_position_embeddings=512,
        tie_word_embeddings=True,
        bos_token_id=None,
        eos_token_id=2,
        pad_token_id=0,
    )
    model = AutoModelForCausalLM.from_config(config)
    if case.experts:  # so that the routers choose, and not nearly evenly
        for layer in model.model.layers:
            torch.nn.init.normal_(layer.mlp.gate.weight)
    return saved(folder, model, tokenizer)


def training(steps: int = STEPS) -> dict[str, Any]:
    """Options of one name and one meaning on both sides."""
    return {
        "max_steps": steps,
        "per_device_train_batch_size": BATCH_SIZE,
        "learning_rate": LEARNING_RATE,
        "logging_steps": 1,
        "save_strategy": "no",
        "seed": 42,
    }


def body(case: Case, model: Path, folder: Path) -> dict[str, Any]:
    """Our spec; the rows are written into `folder`."""
    options = {**training(), "eval_strategy": "no", "precision": "fp32"}
    return job_of(folder, dict(case.task), model, {"train": rows_of(case)}, options).body
