"""Compares losses and rewards, step by step, with TRL's `SFTTrainer` and `DPOTrainer` in float32.

    python -m benchmarks.trl losses [sft sigmoid ipo apo_zero] [--record] [--scratch FOLDER]

The same rows, model, seed, order and options on both sides; all weights are trained, in 30 steps of
the tiny cases of tests/tasks/trl/trl_cases.py. Printed is the largest difference of each number,
which must be below 1e-4; otherwise the exit status is 1. `--record` only runs TRL, and writes what
tests/tasks/trl/test_against_trl.py compares with.
"""

import argparse
import json
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from benchmarks.trl import scratch, sides
from tests.tasks.trl import trl_cases

TOLERANCE: Final = 1e-4
EXACT: Final[dict[str, Any]] = {"bf16": False, "gradient_checkpointing": False}


def tiny(case: trl_cases.Case, folder: Path) -> tuple[dict[str, Any], scratch.TRLCase]:
    """Our spec, and TRL's case."""
    model = trl_cases.save_model(folder / "model", case)
    body = trl_cases.body(case, model, folder)
    return body, _trl_case(case, body, folder)


def _trl_case(case: trl_cases.Case, body: Mapping[str, Any], folder: Path) -> scratch.TRLCase:
    shared = {name: body["training"][name] for name in trl_cases.training()}
    options = {**case.options, **shared, **EXACT, "max_length": body["task"]["max_length"]}
    return scratch.TRLCase(
        trainer=case.trainer,
        model_dir=body["model"]["name_or_path"],
        data=body["dataset"]["train"],
        folder=str(folder),
        options=options,
        chat_template=body["task"].get("chat_template"),
    )


def differences(
    case: trl_cases.Case,
    mine: Sequence[Mapping[str, float]],
    other: Sequence[Mapping[str, float]],
) -> dict[str, float]:
    """Name → the largest difference over all steps."""
    return {
        name: max(abs(one[name] - two[name]) for one, two in zip(mine, other, strict=True))
        for name in case.names
    }


def compare(
    name: str, body: dict[str, Any], trl_case: scratch.TRLCase, site: Path, roots: list[Path]
) -> bool:
    """Whether all numbers are within the tolerance."""
    folder, case = Path(trl_case.folder), trl_cases.CASES[name]
    result = sides.prepared(body, folder, roots)
    mine = sides.ours(body, folder / "ours", result, roots)
    other = sides.theirs(site, sides.ordered(trl_case, result))
    found = differences(case, mine.steps, other.steps)
    largest = "   ".join(f"{key} {value:.1e}" for key, value in found.items())
    losses = [
        f"{side.steps[0]['loss']:.4f} to {side.steps[-1]['loss']:.4f}" for side in (mine, other)
    ]
    is_within = max(found.values()) < TOLERANCE
    verdict = "within" if is_within else "NOT within"
    print(
        f"{name:9} {len(mine.steps)} steps, loss {losses[0]} : {losses[1]}   largest difference "
        f"{largest}   {verdict} {TOLERANCE:.0e}",
        flush=True,
    )
    return is_within


def record(site: Path, folder: Path) -> None:
    """TRL's numbers of the tiny cases, for the test."""
    numbers = {}
    for name, case in trl_cases.CASES.items():
        (folder / name).mkdir()
        body, trl_case = tiny(case, folder / name)
        result = sides.prepared(body, folder / name, [folder])
        side = sides.theirs(site, sides.ordered(trl_case, result), threads=1)
        numbers[name] = {key: [round(v, 6) for v in side.values(key)] for key in case.names}
    lines = [
        f'  "{name}": {{\n'
        + ",\n".join(f'    "{key}": {json.dumps(values)}' for key, values in found.items())
        + "\n  }"
        for name, found in numbers.items()
    ]
    trl_cases.GOLDEN.write_text("{\n" + ",\n".join(lines) + "\n}\n")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("cases", nargs="*", default="all", choices=[*trl_cases.CASES, "all"])
    parser.add_argument("--record", action="store_true")


def run(options: argparse.Namespace) -> int:
    site = scratch.installed(options.scratch)
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        if options.record:
            record(site, folder)
            return 0
        are_within = []
        for name in trl_cases.CASES if "all" in options.cases else options.cases:
            (folder / name).mkdir()
            both = tiny(trl_cases.CASES[name], folder / name)
            are_within.append(compare(name, *both, site, [folder, options.scratch]))
    return 0 if all(are_within) else 1
