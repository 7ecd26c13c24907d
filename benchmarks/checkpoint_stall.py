"""Measures how long a training pauses for its checkpoints, with and without `async_save`.

    python -m benchmarks.checkpoint_stall [--steps 20] [--every 5] [--pairs 3]

MiniLM (22.7 million weights, so 272 MB a checkpoint) learns masked words of the bundled text. Each
pair trains the same job twice, with `async_save` and without, each in its own process with all
cores; every second pair runs in the other order. Printed are the seconds without a step for each
checkpoint that steps follow, and for the last one, which both wait for; the seconds from the first
step to the end of the last save; and the peak memory.
"""

import argparse
import os
import shutil
import statistics
import tempfile
import time
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from benchmarks.training_speed import spec, stage
from service.contract.stage.events import STAGE_EVENT, Finished, PhaseChanged
from service.contract.states import Phase
from tests.stages.support import Running, write_request


@dataclass
class RunTimes:
    stalls: list[float]
    """Seconds for each checkpoint but the last."""
    last: float
    whole: float
    weights: str
    peak: float


def job(training: dict[str, Any]) -> dict[str, Any]:
    return spec("mlm", training) | {"task": {"type": "masked-lm", "max_seq_length": 128}}


def train(folder: Path, body: dict[str, Any], prepared: dict[str, Any]) -> RunTimes:
    request = write_request(folder, body, stage="train", prepared=prepared)
    environment = {"HF_HUB_OFFLINE": "1", "OMP_NUM_THREADS": str(os.cpu_count())}
    command = ["-m", "worker.stages.train.stage", str(request)]
    running = Running(command, folder / "log", environment)
    times: list[tuple[Phase, float]] = []
    result: dict[str, Any] | None = None
    for line in running.events:
        event = STAGE_EVENT.validate_json(line)
        if isinstance(event, PhaseChanged):
            times.append((event.phase, time.monotonic()))
        elif isinstance(event, Finished):
            result = event.result
    running.wait()
    if result is None:
        raise SystemExit((folder / "log").read_text())
    shutil.rmtree(folder)
    return _read(times, result)


def _read(times: list[tuple[Phase, float]], result: dict[str, Any]) -> RunTimes:
    """A save ends when the training continues; writing the finished model does not count as one."""
    first = next(at for phase, at in times if phase is Phase.TRAINING)
    pairs = pairwise(times)
    saves = [
        (begun, ended)
        for (phase, begun), (following, ended) in pairs
        if (phase, following) == (Phase.SAVING, Phase.TRAINING)
    ]
    *stalls, last = [ended - begun for begun, ended in saves]
    peak = result["metrics"]["train_peak_memory_bytes"]
    return RunTimes(stalls, last, saves[-1][1] - first, result["weights_sha256"], peak)


def compare(folder: Path, *, steps: int, every: int, pairs: int) -> None:
    prepared = stage("prepare", folder / "prepare", job({})).result
    runs: dict[bool, list[RunTimes]] = {True: [], False: []}
    for number in range(pairs):
        for in_background in (True, False) if number % 2 == 0 else (False, True):
            training = {
                "max_steps": steps,
                "save_steps": every,
                "logging_steps": every,
                "per_device_train_batch_size": 8,
                "async_save": in_background,
            }
            name = f"{number}-{in_background}"
            ran = train(folder / name, job(training), prepared)
            runs[in_background].append(ran)
            listed = " ".join(f"{seconds:.2f}" for seconds in [*ran.stalls, ran.last])
            print(f"async_save {in_background!s:5}  {listed}  of {ran.whole:.1f} s", flush=True)
    if len({run.weights for each in runs.values() for run in each}) != 1:
        raise SystemExit("the weights differ")
    for in_background, each in runs.items():
        stalls = [seconds for run in each for seconds in run.stalls]
        print(
            f"async_save {in_background!s:5}  {statistics.median(stalls):6.2f} s a checkpoint "
            f"({min(stalls):.2f} to {max(stalls):.2f}), the last "
            f"{statistics.median(run.last for run in each):.2f} s; training "
            f"{statistics.median(run.whole for run in each):6.1f} s "
            f"({min(run.whole for run in each):.1f} to {max(run.whole for run in each):.1f}); "
            f"peak {max(run.peak for run in each) / 2**30:.2f} GiB"
        )
    print(f"all {2 * pairs} trainings ended with the same weights; load {os.getloadavg()[0]:.1f}")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--steps", type=int, default=20)
    parser.add_argument("--every", type=int, default=5)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        compare(Path(folder), steps=options.steps, every=options.every, pairs=options.pairs)


if __name__ == "__main__":
    main()
