"""Teaches SmolLM2-135M-Instruct GSM8K: conversations by `chat`, pairs by `preference`.

    python -m benchmarks.gsm8k [chat preference] [--rows 1000] [--held-out N] [--answered 64]
        [--pairs 1000] [--threads N] [--data FOLDER] [--scratch FOLDER]

`chat`: one epoch over the first conversations of the training set, packed to 1,024 tokens, an
adapter of rank 16. Printed are the loss of the answers on the 1,319 held-out rows before and after,
and the share of right answers, generated for some of these rows. `preference`: DPO on all pairs but
the last 163, which are held out: printed are the share in which the chosen answer has the higher
reward, and the mean margin, before and after.
"""

import argparse
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from benchmarks import gsm8k_rows, trl_scratch
from benchmarks.training_speed import stage
from service.contract.events import Metric
from tests.tasks.stages import write_rows

HELD_OUT_PAIRS: Final = 163
RESULT: Final = r"#### (-?[\d.,]+)"
PEFT: Final[dict[str, Any]] = {
    "method": "lora",
    "r": 16,
    "lora_alpha": 32,
    "target_modules": "all-linear",
}
SHARED: Final[dict[str, Any]] = {
    "num_train_epochs": 1,
    "warmup_steps": 0.1,
    "logging_steps": 5,
    "eval_strategy": "epoch",
    "save_strategy": "no",
    "seed": 42,
}


def chat(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    generate = {
        "exact_match": RESULT,
        "max_new_tokens": 256,
        "max_samples": options.answered,
        "samples": 1,
    }
    rows = gsm8k_rows.read(options.data, "chat-train.jsonl", options.rows)
    return {
        "task": {"type": "chat", "packing": "bfd", "max_length": 1024, "generate": generate},
        "dataset": {
            "source": "path",
            "train": write_rows(folder / "train.jsonl", rows),
            "validation": str(options.data / "chat-test.jsonl"),
            **({"max_eval_samples": options.held_out} if options.held_out else {}),
        },
        "training": {
            **SHARED,
            "per_device_train_batch_size": 2,
            "gradient_accumulation_steps": 2,
            "per_device_eval_batch_size": 16,
            "learning_rate": 5e-4,
        },
    }


def preference(options: argparse.Namespace, folder: Path) -> dict[str, Any]:
    rows = gsm8k_rows.pairs(options.data)
    train, held_out = rows[:-HELD_OUT_PAIRS][: options.pairs], rows[-HELD_OUT_PAIRS:]
    return {
        "task": {"type": "preference", "loss_type": "sigmoid", "beta": 0.1, "max_length": 512},
        "dataset": {
            "source": "path",
            "train": write_rows(folder / "train.jsonl", train),
            "validation": write_rows(folder / "held-out.jsonl", held_out),
        },
        "training": {
            **SHARED,
            "per_device_train_batch_size": 8,
            "per_device_eval_batch_size": 8,
            "learning_rate": 1e-4,
        },
    }


LESSONS: Final[dict[str, Callable[[argparse.Namespace, Path], dict[str, Any]]]] = {
    "chat": chat,
    "preference": preference,
}


def teach(name: str, options: argparse.Namespace, folder: Path) -> None:
    folder.mkdir()
    body = LESSONS[name](options, folder)
    body |= {
        "model": {"name_or_path": str(trl_scratch.smollm2(options.scratch))},
        "peft": PEFT,
        "resources": {"gpus": 0},
    }
    roots = [folder, options.scratch, options.data]
    allowed: dict[str, Any] = {"data_roots": roots, "model_roots": roots}
    prepared = stage("prepare", folder / "prepare", body, **allowed).result
    began = time.monotonic()
    ended = stage("train", folder / "train", body, options.threads, prepared=prepared, **allowed)
    evaluations = [e for e in ended.events if isinstance(e, Metric) and e.kind == "eval"]
    for event in evaluations:
        values = "   ".join(f"{key} {value:.4f}" for key, value in event.values.items())
        print(f"{name:10} step {event.step:4}   {values}", flush=True)
    metrics = ended.result["metrics"]
    print(
        f"{name:10} {metrics['train_tokens_per_second']:.0f} tokens/s, "
        f"{(time.monotonic() - began) / 60:.0f} minutes with evaluations, peak "
        f"{metrics['train_peak_memory_bytes'] / 2**30:.2f} GiB",
        flush=True,
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("lessons", nargs="*", default="all", choices=[*LESSONS, "all"])
    parser.add_argument("--rows", type=int, default=1000)
    parser.add_argument("--answered", type=int, default=64)
    parser.add_argument("--held-out", type=int, help="of the 1,319 conversations; default: all")
    parser.add_argument("--pairs", type=int, default=1000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--data", type=Path, default=gsm8k_rows.FOLDER)
    parser.add_argument("--scratch", type=Path, default=trl_scratch.FOLDER)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in LESSONS if "all" in options.lessons else options.lessons:
            teach(name, options, Path(folder) / name)


if __name__ == "__main__":
    main()
