"""Measures a training step as sequences, batches and models grow, against `transformers.Trainer`.

    python -m benchmarks.scaling [length batch layers width] [--steps 10] [--pairs 2]

A GPT-2 from scratch (6 layers, 384 wide, batches of 8 blocks of 256 tokens of the bundled text), of
which one value is changed at a time. Each pair runs ours and the Trainer with its best settings in
turn, each in its own process with all cores. Printed are milliseconds per step, real tokens per
second, the peak memory, and how much faster ours is.
"""

import argparse
import os
import statistics
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

from benchmarks.training_speed import GPT2, ours, prepared, reference, spec

BASE: Final = {"length": 256, "batch": 8, "layers": 6, "width": 384}
POINTS: Final = {
    "length": (64, 128, 256, 512, 1024),
    "batch": (2, 4, 8, 16),
    "layers": (3, 6, 12),
    "width": (192, 384, 768),
}


def body_of(point: dict[str, int]) -> dict[str, Any]:
    body = spec("clm", {})
    sizes = {
        "n_layer": point["layers"],
        "n_embd": point["width"],
        "n_head": point["width"] // 64,
        "n_positions": point["length"],
    }
    body["model"]["config"] = {"model_type": "gpt2", "config_overrides": {**GPT2, **sizes}}
    body["task"] = {**body["task"], "block_size": point["length"]}
    return body


def measure(folder: Path, point: dict[str, int], *, steps: int, pairs: int) -> str:
    folder.mkdir()
    body = body_of(point)
    case, result = prepared("clm", folder, steps=steps, body=body)
    case = replace(case, best=True, batch_size=point["batch"])
    rows = [(ours(case, number, result, body), reference(case)) for number in range(pairs)]
    ratios = [mine["rate"] / theirs["rate"] for mine, theirs in rows]
    tokens = point["length"] * point["batch"]
    reports = []
    for side in (0, 1):
        rate = statistics.median(row[side]["rate"] for row in rows)
        peak = max(row[side]["peak"] for row in rows) / 2**30
        reports.append(f"{1000 * tokens / rate:7.0f} ms {rate:7.0f} tokens/s {peak:5.2f} GiB")
    spread = f"({min(ratios):.2f} to {max(ratios):.2f})"
    return f"{' : '.join(reports)}   {statistics.median(ratios):.2f} {spread}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("what", nargs="*", default="all", choices=[*POINTS, "all"])
    parser.add_argument("--steps", type=int, default=10)
    parser.add_argument("--pairs", type=int, default=2)
    options = parser.parse_args()
    known: dict[tuple[int, ...], str] = {}
    with tempfile.TemporaryDirectory() as folder:
        for what in POINTS if "all" in options.what else options.what:
            for value in POINTS[what]:
                point = BASE | {what: value}
                key = tuple(point.values())
                if key not in known:
                    place = Path(folder) / "-".join(map(str, key))
                    known[key] = measure(place, point, steps=options.steps, pairs=options.pairs)
                print(f"{what:7}{value:5}  {known[key]}", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
