"""Trains for long what benchmarks/training_speed.py trains for a few steps.

    python -m benchmarks.long_run [qa mlm clm lora] [--steps 2000] [--threads N]

`precision: auto`, the allocator of a worker, no evaluations. Printed are the four quarters of each
training: the mean resident memory in MiB, the mean of the real tokens per second, and the processor
time of a step in milliseconds, which other processes change little where `--threads 1` is given.
Then come the last quarter's memory relative to the second's, the last quarter's processor time
relative to the first's, and threads and open files in the middle and at the end. With one thread
2,000 steps take 40 minutes (qa) to three hours.
"""

import argparse
import os
import tempfile
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from statistics import fmean
from typing import Final

from benchmarks.memory import Sample, trained
from benchmarks.training_speed import (
    EXAMPLES,
    TASKS,
    Process,
    base_model,
    prepared,
    spec,
    training_of,
)
from service.contract.states import Stage
from tests.stages.support import write_request
from tests.support.models import minilm_dir

LOGGED: Final = 10
"""Every how many steps."""
LEAST: Final = 20 * LOGGED
"""Steps, so that each quarter has some that are logged."""


@dataclass(frozen=True)
class Quarter:
    samples: list[Sample]

    @property
    def mebibytes(self) -> float:
        return fmean(each.mebibytes for each in self.samples)

    @property
    def tokens_per_second(self) -> float:
        return fmean(each.tokens_per_second for each in self.samples)

    @property
    def step_milliseconds(self) -> float:
        first, last = self.samples[0], self.samples[-1]
        return 1000 * (last.cpu_seconds - first.cpu_seconds) / (last.step - first.step)


def run(name: str, folder: Path, options: argparse.Namespace) -> list[Sample]:
    folder.mkdir()
    case, result = prepared(name, folder, steps=options.steps)
    request = write_request(
        folder / "long",
        spec(name, training_of(case, logging_steps=LOGGED), base_model(name, folder)),
        stage="train",
        prepared=result,
        data_roots=[EXAMPLES, folder],
        model_roots=[minilm_dir(), folder],
    )
    process = Process(threads=options.threads)
    return trained(request, process.environment(Stage.TRAIN, folder))[0]


def quarters_of(samples: list[Sample]) -> list[Quarter]:
    logged = [each for each in samples if each.step >= LOGGED]
    steps = logged[-1].step
    bounds = [steps * number // 4 for number in range(5)]
    return [
        Quarter([each for each in logged if first < each.step <= last])
        for first, last in pairwise(bounds)
    ]


def row(samples: list[Sample]) -> str:
    quarters = quarters_of(samples)
    first, second, _third, last = quarters
    ends = [quarter.samples[-1] for quarter in (second, last)]
    cells = [
        ", ".join(f"{each.mebibytes:.0f}" for each in quarters),
        f"{last.mebibytes / second.mebibytes:.3f}",
        ", ".join(f"{each.tokens_per_second:.0f}" for each in quarters),
        ", ".join(f"{each.step_milliseconds:.0f}" for each in quarters),
        f"{last.step_milliseconds / first.step_milliseconds:.3f}",
        "; ".join(f"{end.threads}, {end.files}" for end in ends),
    ]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default="all", choices=[*TASKS, "all"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    if options.steps < LEAST:
        parser.error(f"a quarter has too few steps: at least {LEAST}")
    columns = ["task", "MiB", "last : second", "tokens/s", "CPU ms a step", "last : first"]
    columns += ["threads, files"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in TASKS if "all" in options.tasks else options.tasks:
            print(f"| {name} | {row(run(name, Path(folder) / name, options))} |", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
