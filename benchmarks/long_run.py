"""Trains for long what benchmarks/training_speed.py trains for a few steps.

    python -m benchmarks.long_run [qa mlm clm lora] [--steps 2000]

`precision: auto`, the allocator of a worker, all cores, no evaluations. Printed are the four
quarters of each training: the mean resident memory in MiB, and the mean of the real tokens per
second of each ten steps. Then come the memory of the last quarter relative to the second, the speed
of the last relative to the first, and threads and open files in the middle and at the end. On two
quiet cores 2,000 steps take 20 minutes (qa) to an hour.
"""

import argparse
import os
import tempfile
from pathlib import Path
from statistics import fmean

from benchmarks.memory import Sample, trained
from benchmarks.training_speed import AS_A_WORKER, EXAMPLES, TASKS, base_model, prepared, spec
from service.contract.states import Stage
from tests.stages.support import write_request
from tests.support.models import minilm_dir


def run(name: str, folder: Path, steps: int) -> list[Sample]:
    folder.mkdir()
    case, result = prepared(name, folder, steps=steps)
    training = {
        "max_steps": steps,
        "per_device_train_batch_size": case.batch_size,
        "logging_steps": 10,
        "save_strategy": "no",
        "train_sampling_strategy": "group_by_length" if name == "qa" else "random",
    }
    request = write_request(
        folder / "long",
        spec(name, training, base_model(name, folder)),
        stage="train",
        prepared=result,
        data_roots=[EXAMPLES, folder],
        model_roots=[minilm_dir(), folder],
    )
    return trained(request, AS_A_WORKER.environment(Stage.TRAIN, folder))[0]


def row(samples: list[Sample]) -> str:
    steps = samples[-1].step
    quarters: list[list[Sample]] = [[], [], [], []]
    for sample in samples:
        if sample.tokens_per_second == sample.tokens_per_second:  # something was logged
            quarters[min(3, 4 * (sample.step - 1) // steps)].append(sample)
    memory = [fmean(each.mebibytes for each in quarter) for quarter in quarters]
    speed = [fmean(each.tokens_per_second for each in quarter) for quarter in quarters]
    middle, last = quarters[1][-1], samples[-1]
    cells = [
        ", ".join(f"{each:.0f}" for each in memory),
        f"{memory[3] / memory[1]:.3f}",
        ", ".join(f"{each:.0f}" for each in speed),
        f"{speed[3] / speed[0]:.3f}",
        f"{middle.threads}, {last.threads}; {middle.files}, {last.files}",
    ]
    return " | ".join(cells)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default="all", choices=[*TASKS, "all"])
    parser.add_argument("--steps", type=int, default=2000)
    options = parser.parse_args()
    columns = ["task", "MiB by quarter", "last : second"]
    columns += ["tokens/s by quarter", "last : first", "threads; files"]
    print(f"| {' | '.join(columns)} |")
    print("|---" * len(columns) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in TASKS if "all" in options.tasks else options.tasks:
            print(f"| {name} | {row(run(name, Path(folder) / name, options.steps))} |", flush=True)
    print(f"load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
