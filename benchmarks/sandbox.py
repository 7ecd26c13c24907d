"""Times training in the sandbox (`auto`) against training without one (`off`).

    python -m benchmarks.sandbox [--pairs 6] [--steps 60]

Two services run at the same time, and one of them has a job at a time: question answering with
MiniLM, all cores, stages forked, limits watched on both sides, prepared data found in the cache.
Prints each pair: steps per second of the training loop, seconds of the whole stage `train`, and
processor seconds of the worker with all that it started, which other work on the machine changes
less. Then the medians of the ratios with their ranges. Weights and losses must be equal.
"""

import argparse
import os
import statistics
import tempfile
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.start import WAIT_SECONDS
from benchmarks.whole_job import SQUAD
from tests.e2e.stack import Stack
from tests.support import services
from tests.support.models import minilm_dir

SIDES = ("off", "auto")


@dataclass(frozen=True)
class Run:
    steps_per_second: float
    stage_seconds: float
    cpu_seconds: float
    outcome: tuple[Any, ...]

    def __str__(self) -> str:
        return (
            f"{self.steps_per_second:6.3f} steps/s  stage {self.stage_seconds:6.2f} s  "
            f"processor {self.cpu_seconds:6.2f} s"
        )


def started(parts: ExitStack, folder: Path, sandbox: str) -> Stack:
    home = folder / sandbox
    home.mkdir()
    variables = {
        "FINETUNE_REDIS_URL": parts.enter_context(services.broker(services.valkey_binary())),
        "FINETUNE_MODEL_ROOTS": str(minilm_dir()),
        "FINETUNE_SANDBOX": sandbox,
        "FINETUNE_SYSTEM_METRICS_SECONDS": "10",
        "OMP_NUM_THREADS": str(os.cpu_count()),
    }
    stack = Stack(home, variables)
    parts.callback(stack.stop)
    stack.start()
    return stack


def body(stack: Stack, steps: int) -> dict[str, Any]:
    return {
        "task": {"type": "question-answering", "max_seq_length": 128, "doc_stride": 32},
        "model": {"name_or_path": str(minilm_dir())},
        "dataset": {"source": "upload", "train": stack.upload(SQUAD["train"])},
        "training": {"max_steps": steps, "logging_steps": 1, "save_strategy": "no"},
        "resources": {"gpus": 0},
    }


def cpu_seconds(stack: Stack) -> float:
    """Of the worker, of the processes that it has now, and of those that have ended."""
    found = [process.cpu_times() for process in stack.parts["worker"].family()]
    return sum(t.user + t.system + t.children_user + t.children_system for t in found)


def run(stack: Stack, spec: dict[str, Any]) -> Run:
    before = cpu_seconds(stack)
    job_id = stack.submit(spec)
    stack.finish(job_id, seconds=WAIT_SECONDS)
    used = cpu_seconds(stack) - before
    result = stack.job(job_id)["result"]
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    ends = [event["data"] for event in events if event["type"] == "stage_finished"]
    rows = stack.pages(f"/v1/jobs/{job_id}/metrics")
    losses = tuple(row["values"]["loss"] for row in rows if "loss" in row["values"])
    return Run(
        steps_per_second=result["metrics"]["train_steps_per_second"],
        stage_seconds=next(end["seconds"] for end in ends if end["stage"] == "train"),
        cpu_seconds=used,
        outcome=(result["weights_sha256"], losses),
    )


def report(pairs: list[dict[str, Run]]) -> None:
    print(f"\n{len(pairs)} pairs, load {os.getloadavg()[0]:.1f}: `auto` of `off`, medians (range)")
    for name in ("steps_per_second", "stage_seconds", "cpu_seconds"):
        ratios = sorted(getattr(pair["auto"], name) / getattr(pair["off"], name) for pair in pairs)
        print(f"{name:17} {statistics.median(ratios):.3f} ({ratios[0]:.3f} to {ratios[-1]:.3f})")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--pairs", type=int, default=6)
    parser.add_argument("--steps", type=int, default=60)
    options = parser.parse_args()
    pairs: list[dict[str, Run]] = []
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        stacks = {side: started(parts, folder, side) for side in SIDES}
        specs = {side: body(stack, options.steps) for side, stack in stacks.items()}
        for stack in stacks.values():  # Later jobs find the imports and the prepared data.
            stack.finish(stack.submit(body(stack, 2)), seconds=WAIT_SECONDS)
        for number in range(options.pairs):
            order = SIDES if number % 2 else SIDES[::-1]
            pairs.append({side: run(stacks[side], specs[side]) for side in order})
            for side in SIDES:
                print(f"{side:5} {pairs[-1][side]}", flush=True)
            if len({one.outcome for one in pairs[-1].values()}) > 1:
                raise SystemExit("the two trainings differ")
    report(pairs)


if __name__ == "__main__":
    main()
