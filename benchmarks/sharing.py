"""Measures how trainings on the same cores slow each other down, by how long threads spin.

    python -m benchmarks.sharing [SPINS ...] [--at-once 2] [--steps 80] [--pairs 3] [--full]

Each round runs every value of GOMP_SPINCOUNT in turn (`passive`: OMP_WAIT_POLICY=PASSIVE), first
one training alone, then `--at-once` of them together, each with all cores: question answering,
packed, on a small model from scratch or with `--full` on MiniLM. Printed are real tokens per second
of each training and the medians with their ratio to the first value, the default of libgomp. The
number of spins changes no result: the losses of all runs must be equal.
"""

import argparse
import os
import statistics
import tempfile
from concurrent.futures import ThreadPoolExecutor
from itertools import product, repeat
from pathlib import Path
from typing import Any, Final

from benchmarks.memory import environment, spec, trained
from benchmarks.training_speed import EXAMPLES, stage
from tests.stages.support import write_request
from tests.support.models import minilm_dir
from worker.processes import allocator

TASK: Final = "question-answering"
LIBGOMPS_OWN: Final = "300000"
VALUES: Final = (LIBGOMPS_OWN, "10000", "passive")


def variables(spins: str) -> dict[str, str]:
    given = environment(allocator.AUTO, os.cpu_count() or 1)
    for name in ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY"):
        given.pop(name, None)
    own = {"OMP_WAIT_POLICY": "PASSIVE"} if spins == "passive" else {"GOMP_SPINCOUNT": spins}
    return given | own


def run(request: Path, spins: str) -> dict[str, float]:
    return trained(request, variables(spins))[1]


def measure(count: int, options: argparse.Namespace) -> None:
    """Run `count` trainings at once and print the results."""
    speeds: dict[str, list[float]] = {spins: [] for spins in options.spins}
    losses = set()
    training = {
        "max_steps": options.steps,
        "per_device_train_batch_size": 8,
        "logging_steps": 10,
        "save_strategy": "no",
    }
    with tempfile.TemporaryDirectory() as temporary, ThreadPoolExecutor(count) as pool:
        folder = Path(temporary)
        body = spec(TASK, folder, full=options.full, tiny=False)
        prepared = stage("prepare", folder / "prepare", body).result
        given: dict[str, Any] = {"data_roots": [EXAMPLES], "model_roots": [minilm_dir(), folder]}
        given |= {"stage": "train", "prepared": prepared}
        for number, spins in product(range(options.pairs), options.spins):
            folders = [folder / f"{spins}-{number}-{place}" for place in range(count)]
            requests = [
                write_request(own, body | {"training": training}, **given) for own in folders
            ]
            found = list(pool.map(run, requests, repeat(spins)))
            speeds[spins] += [metrics["train_tokens_per_second"] for metrics in found]
            losses |= {metrics["train_loss"] for metrics in found}
    if len(losses) != 1:
        raise SystemExit(f"the trainings differ: {sorted(losses)}")
    print(f"{count} at once, loss {losses.pop():.4f}")
    report(speeds)


def report(speeds: dict[str, list[float]]) -> None:
    first = statistics.median(next(iter(speeds.values())))
    for spins, found in speeds.items():
        median = statistics.median(found)
        runs = " ".join(f"{speed:.0f}" for speed in found)
        print(
            f"  {spins:>10}  {median:8.0f} tokens/s  {median / first:5.2f}   ({runs})", flush=True
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("spins", nargs="*", default=VALUES)
    parser.add_argument("--at-once", type=int, default=2)
    parser.add_argument("--steps", type=int, default=80)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--full", action="store_true")
    options = parser.parse_args()
    for count in (1, options.at_once):
        measure(count, options)


if __name__ == "__main__":
    main()
