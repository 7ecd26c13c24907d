"""Compares speed and memory with TRL's `SFTTrainer` and `DPOTrainer`: SmolLM2-135M on GSM8K.

    python -m benchmarks.trl speed [sft-lora sft-full dpo-lora dpo-full] [--steps 6] [--pairs 3]
        [--activation-checkpointing] [--threads N] [--data FOLDER] [--scratch FOLDER]

Conversations packed to 1,024 tokens, in steps of two micro-batches of one packed example; or steps
of four pairs. TRL has its fastest settings: no activation checkpointing, SDPA, one packed example
at a time (more would be a longer row, whose attention grows with the square). Ours has its
defaults, with the allocator that a worker gives its stages. Both compute in bfloat16 if the
processor does, with float32 weights, or bfloat16 ones under an adapter of rank 16. Both compute the
reference's log-probabilities before the first step; that is not timed. With
`--activation-checkpointing` ours recomputes activations, and TRL still does not. Each pair runs
ours and TRL in turn, each in its own process, with all cores or `--threads`. Printed are the median
ratio of real tokens per second with its range, the mean loss of both over the same steps, and the
peak memory.
"""

import argparse
import os
import tempfile
from pathlib import Path
from typing import Any, Final

from benchmarks.training_speed import malloc, report
from benchmarks.trl import gsm8k, scratch, sides
from tests.tasks.stages import write_rows
from tests.tasks.trl import trl_cases
from worker.training.cpu_products import Trial

NAMES: Final = ("sft-lora", "sft-full", "dpo-lora", "dpo-full")
LENGTH: Final = 1024
LORA: Final[dict[str, Any]] = {"r": 16, "lora_alpha": 16, "target_modules": "all-linear"}
PACKED_A_STEP: Final = 2
PAIRS_A_STEP: Final = 4
PER_EXAMPLE: Final = 6
"""Conversations of GSM8K that surely fill a packed example."""


def comparison(
    name: str, steps: int, folder: Path, model: Path, data: Path, *, checkpointing: bool
) -> tuple[dict[str, Any], scratch.TRLCase]:
    """Our spec, and TRL's case."""
    trainer, _, weights = name.partition("-")
    case = trl_cases.CASES["sft" if trainer == "sft" else "sigmoid"]
    packs, adapter = trainer == "sft", LORA if weights == "lora" else None
    folder.mkdir()
    if packs:
        rows = gsm8k.read(data, "chat-train.jsonl", steps * PACKED_A_STEP * PER_EXAMPLE)
    else:
        rows = gsm8k.pairs(data, steps * PAIRS_A_STEP)
    file = write_rows(folder / "train.jsonl", rows)
    dtype = "bfloat16" if adapter else "float32"
    shared = {
        "max_steps": steps,
        "learning_rate": 1e-4 if adapter else 1e-5,
        "logging_steps": 1,
        "save_strategy": "no",
        "seed": 42,
        "per_device_train_batch_size": 1 if packs else PAIRS_A_STEP,
        "gradient_accumulation_steps": PACKED_A_STEP if packs else 1,
    }
    half = Trial([], folder).bfloat16_is_faster()
    options = {
        **case.options,
        **shared,
        "max_length": LENGTH,
        "bf16": half,
        "gradient_checkpointing": False,
        **({} if packs else {"precompute_ref_log_probs": True}),
    }
    body = {
        "task": {**case.task, "max_length": LENGTH, "chat_template": trl_cases.TEMPLATE},
        "model": {"name_or_path": str(model), "dtype": dtype},
        "dataset": {"source": "path", "train": file},
        "training": {
            **shared,
            "precision": "bf16" if half else "fp32",
            "eval_strategy": "no",
            "activation_checkpointing": checkpointing,
        },
        "resources": {"gpus": 0},
        **({"peft": {"method": "lora", **adapter}} if adapter else {}),
    }
    return body, scratch.TRLCase(
        trainer=case.trainer,
        model_dir=str(model),
        data=file,
        folder=str(folder),
        options=options,
        chat_template=trl_cases.TEMPLATE,
        lora=adapter,
        dtype=dtype,
    )


def compare(
    name: str,
    body: dict[str, Any],
    trl_case: scratch.TRLCase,
    site: Path,
    roots: list[Path],
    *,
    pairs: int,
    threads: int,
) -> None:
    folder = Path(trl_case.folder)
    result = sides.prepared(body, folder, roots)
    trl_case = sides.ordered(trl_case, result)
    rows = []
    for number in range(pairs):
        mine = sides.ours(body, folder / f"ours-{number}", result, roots, threads)
        rows.append((mine, sides.theirs(site, trl_case, threads=threads)))
    report(name, rows)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", default="all", choices=[*NAMES, "all"])
    parser.add_argument("--steps", type=int, default=6)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--activation-checkpointing", action="store_true")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--data", type=Path, default=gsm8k.FOLDER)


def run(options: argparse.Namespace) -> int:
    site, model = scratch.installed(options.scratch), scratch.smollm2(options.scratch)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        for name in NAMES if "all" in options.cases else options.cases:
            both = comparison(
                name,
                options.steps,
                folder / name,
                model,
                options.data,
                checkpointing=options.activation_checkpointing,
            )
            compare(
                name,
                *both,
                site,
                [folder, options.scratch],
                pairs=options.pairs,
                threads=options.threads,
            )
    print(f"malloc {malloc()} : the C library's   load {os.getloadavg()[0]:.1f}")
    return 0
