"""Compares the quality of trained models with `transformers.Trainer` over several seeds.

    python -m benchmarks.quality [qa mlm clm] [--steps 60] [--seeds 5]

Both sides train on the same features with the same options, ours with its defaults, the Trainer
with its best settings (bf16 if the processor has it, QA in batches of similar length). Each
finished model is loaded by transformers and scored by the same program on the same held-out
features: F1 of the answers that run_qa would choose, or perplexity (masked: with the same masks).
Printed are mean and range of both; the quality is the same if each mean lies within the other's
range.
"""

import argparse
import json
import statistics
import sys
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.cases import Case
from benchmarks.training_speed import (
    EXAMPLES,
    base_model,
    prepared,
    program,
    reference,
    spec,
    stage,
)

BATCH_SIZE: Final = 16
LENGTH: Final = 128
LEARNING_RATES: Final = {"qa": 5e-4, "mlm": 1e-4, "clm": 5e-4}
METRICS: Final = {"qa": "f1", "mlm": "perplexity", "clm": "perplexity"}
_VALIDATION: Final = {"qa": "squad/validation-v1.1.json"}


def body_of(name: str, training: dict[str, Any], folder: Path) -> dict[str, Any]:
    body = spec(name, training, base_model(name, folder))
    length = {"block_size": LENGTH} if name == "clm" else {"max_seq_length": LENGTH}
    body["task"] = {**body["task"], **length}
    if name == "qa":
        body["task"]["doc_stride"] = LENGTH // 4
    body["dataset"]["validation"] = str(EXAMPLES / _VALIDATION.get(name, "wikitext/validation.txt"))
    body["dataset"]["max_eval_samples"] = 400
    return body


def ours(case: Case, result: dict[str, Any]) -> Path:
    """The model that the train stage finishes."""
    training = {
        "seed": case.seed,
        "max_steps": case.steps,
        "per_device_train_batch_size": case.batch_size,
        "learning_rate": case.learning_rate,
        "save_strategy": "no",
        "eval_strategy": "no",
        "train_sampling_strategy": "group_by_length" if case.name == "qa" else "random",
    }
    folder = case.folder / f"ours-{case.seed}"
    ended = stage("train", folder, body_of(case.name, training, case.folder), prepared=result)
    return folder / str(ended.result["output_dir"])


def score(case: Case, model: Path) -> float:
    said = program(__spec__.name, "--judge", str(replace(case, model_dir=model).write()))
    return said[METRICS[case.name]]


def judge(case: Case) -> dict[str, float]:
    from benchmarks import evaluation_sides

    if case.name == "qa":
        return evaluation_sides.reference(case)
    return evaluation_sides.perplexity(case)


def compare(name: str, folder: Path, *, steps: int, seeds: int) -> None:
    folder.mkdir()
    case, result = prepared(name, folder, steps=steps, body=body_of(name, {}, folder))
    case = replace(
        case,
        best=True,
        batch_size=BATCH_SIZE,
        max_length=LENGTH,
        learning_rate=LEARNING_RATES[name],
    )
    mine, theirs = [], []
    for seed in range(1, seeds + 1):
        seeded = replace(case, seed=seed, save_to=folder / f"theirs-{seed}")
        mine.append(score(seeded, ours(seeded, result)))
        reference(seeded)
        theirs.append(score(seeded, folder / f"theirs-{seed}"))
    same = _within(mine, theirs) and _within(theirs, mine)
    print(
        f"{name:4} {METRICS[name]:10} ours {_told(mine)}   Trainer {_told(theirs)}   "
        f"{'within' if same else 'NOT within'} each other's range, {seeds} seeds",
        flush=True,
    )


def _within(values: list[float], others: list[float]) -> bool:
    return min(others) <= statistics.mean(values) <= max(others)


def _told(values: list[float]) -> str:
    return f"{statistics.mean(values):.3f} ({min(values):.3f} to {max(values):.3f})"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default="all", choices=[*METRICS, "all"])
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--seeds", type=int, default=5)
    parser.add_argument("--judge", type=Path, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.judge:
        json.dump(judge(Case.read(options.judge)), sys.stdout)
        return
    with tempfile.TemporaryDirectory() as folder:
        for name in METRICS if "all" in options.tasks else options.tasks:
            compare(name, Path(folder) / name, steps=options.steps, seeds=options.seeds)


if __name__ == "__main__":
    main()
