"""Compares which tokens of conversations are trained, token by token, with TRL's labels.

    python -m benchmarks.trl masks [--rows 500] [--data FOLDER] [--scratch FOLDER]

TRL 1.16 ships the chat templates of many models as these publish them, and each again with marks
around what the assistant writes. Its `SFTTrainer` (`assistant_only_loss`) prepares the rows with a
model that has the published template; ours renders them with the marked one, and with the published
one, where the trained tokens come from comparing prefixes. Printed are tokens, trained tokens, and
how many of them differ; and rows that ours refuses, with the first reason.
"""

import argparse
import json
import tempfile
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from benchmarks.trl import gsm8k, scratch

SYSTEM: Final = ("plain", "several", "system")
TOOLS: Final = (*SYSTEM, "tools")
DEEPSEEK: Final = ("<｜User｜>", "<｜Assistant｜>", "<｜end▁of▁sentence｜>")  # noqa: RUF001
CHATML: Final = ("<|im_start|>", "<|im_end|>")
COHERE: Final = (
    *("<|START_OF_TURN_TOKEN|>", "<|END_OF_TURN_TOKEN|>", "<|CHATBOT_TOKEN|>"),
    *("<|USER_TOKEN|>", "<|SYSTEM_TOKEN|>", "<|START_RESPONSE|>", "<|END_RESPONSE|>"),
)


@dataclass(frozen=True)
class Family:
    """What a tokenizer of the family has besides its template."""

    specials: tuple[str, ...]
    shapes: tuple[str, ...] = SYSTEM
    """Of the conversations that its template can write."""
    eos: str = ""
    """Default: the last of `specials`."""
    bos: str = "<s>"


FAMILIES: Final[dict[str, Family]] = {
    "cohere": Family(COHERE, eos="<|END_OF_TURN_TOKEN|>"),
    "cohere2": Family(COHERE, eos="<|END_OF_TURN_TOKEN|>"),
    "deepseekv3": Family(DEEPSEEK),
    "gemma": Family(("<start_of_turn>", "<end_of_turn>"), ("plain", "several")),
    "gemma3": Family(("<start_of_turn>", "<end_of_turn>")),
    "glm4moe": Family(("<|system|>", "<|assistant|>", "<|observation|>", "<|user|>"), TOOLS),
    "gptoss": Family(
        ("<|start|>", "<|channel|>", "<|message|>", "<|end|>", "<|call|>", "<|return|>"), TOOLS
    ),
    "lfm2": Family(CHATML),
    "llama3": Family(("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>")),
    "nemotron_3_nano": Family(CHATML, TOOLS),
    "phi3": Family(("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")),
    "phi3_5": Family(("<|system|>", "<|user|>", "<|assistant|>", "<|end|>", "<|endoftext|>")),
    "qwen2_5": Family(CHATML, TOOLS),
    "qwen3": Family(CHATML, (*TOOLS, "thinking")),
    "qwen3_instruct_2507": Family(CHATML, TOOLS),
}


@dataclass
class Found:
    """Counts over the rows that were rendered."""

    rows: int = 0
    tokens: int = 0
    trained: int = 0
    other_text: int = 0
    """Rows whose tokens themselves differ."""
    differing: int = 0
    """Tokens trained on one side only; of the other rows."""
    refused: Counter[str] = field(default_factory=Counter)

    def summary(self) -> str:
        text = (
            f"{self.rows:4} rows {self.tokens:7} tokens {self.trained:7} trained "
            f"{self.differing:5} differ"
        )
        if self.other_text:
            text += f", {self.other_text} rows with other tokens"
        if self.refused:
            reason, count = self.refused.most_common(1)[0]
            text += f", {self.refused.total()} refused ({count}: {reason[:150]})"
        return text


def tokenizer_of(family: Family, template: str, base: Path) -> Any:
    """The base tokenizer with the family's special tokens and template."""
    from transformers import AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(base)
    eos = family.eos or family.specials[-1]
    tokenizer.add_special_tokens(
        {
            "bos_token": family.bos,
            "eos_token": eos,
            "pad_token": eos,
            "extra_special_tokens": list(family.specials),
        }
    )
    tokenizer.chat_template = template
    return tokenizer


def save_model(folder: Path, tokenizer: Any) -> None:
    """A model that is never run, for TRL's trainer."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(
        vocab_size=len(tokenizer),
        hidden_size=8,
        intermediate_size=8,
        num_hidden_layers=1,
        num_attention_heads=1,
    )
    LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save_pretrained(folder)


def ours(tokenizer: Any, template: str | None, rows: list[dict[str, Any]]) -> list[Any]:
    """For each row what `chat` would train on, or the reason why it refuses the row."""
    from service.contract.tasks.chat import ChatSpec
    from worker.data.table import RowError
    from worker.tasks.chat.rendering import Renderer
    from worker.tasks.chat.rows import RowCleaner, load

    parameters = ChatSpec(chat_template=template)
    clean, renderer = RowCleaner("train", parameters), Renderer(tokenizer, parameters)
    found: list[Any] = []
    for row in rows:
        try:
            found.append(renderer.render(load(clean(row))))
        except RowError as error:
            found.append(str(error))
    return found


def compared(mine: list[Any], labels: dict[str, list[list[int]]]) -> Found:
    found = Found()
    for one, ids, wanted in zip(mine, labels["input_ids"], labels["labels"], strict=True):
        if isinstance(one, str):
            found.refused[one] += 1
            continue
        found.rows += 1
        found.tokens += len(ids)
        found.trained += sum(label != -100 for label in wanted)
        if list(one.input_ids) != ids:
            found.other_text += 1
            continue
        pairs = zip(one.trained, wanted, strict=True)
        found.differing += sum(bool(trained) != (label != -100) for trained, label in pairs)
    return found


def theirs(site: Path, folder: Path, rows: list[dict[str, Any]]) -> dict[str, list[list[int]]]:
    """The labels of the rows, as TRL prepares them for the model in `folder`."""
    file = folder / "rows.jsonl"
    file.write_text("".join(json.dumps(row) + "\n" for row in rows))
    options = {"assistant_only_loss": True, "max_length": None, "bf16": False}
    case = scratch.TRLCase("SFTTrainer", str(folder), str(file), str(folder), options)
    return scratch.reference(site, "labels", case)


def published(site: Path, base: Path, folder: Path, data: Path, count: int) -> None:
    """The templates that TRL ships: with marks, and as published."""
    for name, family in FAMILIES.items():
        texts = [
            (site / "trl" / "chat_templates" / f"{file}.jinja").read_text(encoding="utf-8")
            for file in (name, f"{name}_training")
        ]
        rows = gsm8k.shaped(data, family.shapes, count)
        tokenizer = tokenizer_of(family, texts[0], base)
        save_model(folder / name, tokenizer)
        labels = theirs(site, folder / name, rows)
        for kind, template in (("marked", texts[1]), ("published", None)):
            found = compared(ours(tokenizer, template, rows), labels)
            print(f"{name:20} {kind:10} {found.summary()}", flush=True)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--rows", type=int, default=500)
    parser.add_argument("--data", type=Path, default=gsm8k.FOLDER)


def run(options: argparse.Namespace) -> int:
    site, base = scratch.installed(options.scratch), scratch.smollm2(options.scratch)
    with tempfile.TemporaryDirectory() as folder:
        published(site, base, Path(folder), options.data, options.rows)
    return 0
