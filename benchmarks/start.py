"""Times small whole jobs over real HTTP, stages forked (warm) against new interpreters (cold).

    python -m benchmarks.start [--pairs 5] [--steps 50]

Two services run at the same time (SQLite, Valkey, one worker each, one thread per stage, no
MLflow); only one of them has a job at a time. A client polls every 20 ms and measures from before
the POST to the first optimizer step, and to `succeeded`. `claimed`: from the job's commit to the
claim's, both by the database's clock. Prints each pair, then medians and the median ratio with its
range. If the two jobs of a pair differ in weights or losses, the benchmark ends: it compares equal
work. Before the pairs it measures processor seconds from the start of an API process to its first
response.
"""

import argparse
import os
import statistics
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any

from tests.api.interactive.first_answer import first_answer
from tests.e2e.data import write_squad
from tests.e2e.stack import Stack
from tests.support.models import save_tiny_bert
from tests.support.servers import services

POLL_SECONDS = 0.02
WAIT_SECONDS = 900.0


@dataclass(frozen=True)
class Run:
    claimed: float
    first_step: float
    whole: float
    outcome: tuple[Any, ...]


def body(stack: Stack, model: Path, squad: dict[str, Path], steps: int) -> dict[str, Any]:
    return {
        "task": {
            "type": "question-answering",
            "version_2_with_negative": True,
            "max_seq_length": 128,
            "doc_stride": 32,
        },
        "model": {"name_or_path": str(model)},
        "dataset": {"source": "upload", "train": stack.upload(squad["train"])},
        "training": {"max_steps": steps, "logging_steps": 1, "save_strategy": "no"},
        "resources": {"gpus": 0},
    }


def run(stack: Stack, spec: dict[str, Any]) -> Run:
    begun = time.monotonic()
    job_id = stack.submit(spec)
    first_step = wait_for(stack, job_id, lambda job: step_of(job) >= 1) - begun
    whole = wait_for(stack, job_id, lambda job: job["state"] == "succeeded") - begun
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    times = [
        datetime.fromisoformat(next(event["at"] for event in events if event["type"] == kind))
        for kind in ("submitted", "stage_started")
    ]
    rows = stack.pages(f"/v1/jobs/{job_id}/metrics")
    losses = tuple(row["values"]["loss"] for row in rows if "loss" in row["values"])
    sha = stack.job(job_id)["result"]["weights_sha256"]
    return Run((times[1] - times[0]).total_seconds(), first_step, whole, (sha, losses))


def step_of(job: dict[str, Any]) -> int:
    return (job["progress"] or {}).get("step", 0) if job["stage"] != "prepare" else 0


def wait_for(stack: Stack, job_id: str, reached: Callable[[dict[str, Any]], bool]) -> float:
    """The time at which the job's page met the condition; SystemExit if the job ends without it."""
    deadline = time.monotonic() + WAIT_SECONDS
    while time.monotonic() < deadline:
        job = stack.job(job_id)
        if reached(job):
            return time.monotonic()
        if job["state"] in ("failed", "cancelled"):
            raise SystemExit(f"{job_id} {job['state']}: {job['failure']}\n{stack.log(job_id)}")
        time.sleep(POLL_SECONDS)
    raise SystemExit(f"{job_id} took more than {WAIT_SECONDS:.0f} s")


def compare(cold: Callable[[], Run], warm: Callable[[], Run], pairs: int) -> None:
    done = []
    for number in range(pairs):
        # The second one may find the machine in a different state: alternate the order.
        order = (cold, warm) if number % 2 else (warm, cold)
        results = {measure: measure() for measure in order}
        pair = (results[cold], results[warm])
        if pair[0].outcome != pair[1].outcome:
            raise SystemExit("the two have not done the same")
        done.append(pair)
        for name, one in zip(("cold", "warm"), pair, strict=True):
            print(
                f"{name}  claimed {one.claimed:.3f} s  first step {one.first_step:.2f} s"
                f"  whole {one.whole:.2f} s",
                flush=True,
            )
    print(f"\n{pairs} pairs, equal weights and losses; load {os.getloadavg()[0]:.1f}")
    for what in ("claimed", "first_step", "whole"):
        values = [(getattr(a, what), getattr(b, what)) for a, b in done]
        ratios = sorted(a / b for a, b in values)
        medians = [statistics.median(column) for column in zip(*values, strict=True)]
        print(
            f"{what:11} cold {medians[0]:.3f} s, warm {medians[1]:.3f} s: "
            f"{statistics.median(ratios):.2f}x ({ratios[0]:.2f} to {ratios[-1]:.2f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--steps", type=int, default=50)
    arguments = parser.parse_args()
    broker = services.valkey_binary()
    with tempfile.TemporaryDirectory() as name:
        starts = sorted(first_answer(Path(name)).cpu_seconds for _ in range(arguments.pairs))
    print(
        f"an API process answers after {statistics.median(starts):.2f} s of processor time"
        f" ({starts[0]:.2f} to {starts[-1]:.2f})",
        flush=True,
    )
    with (
        tempfile.TemporaryDirectory() as name,
        services.broker(broker) as cold,
        services.broker(broker) as warm,
    ):
        _main(Path(name), {"0": cold, "1": warm}, arguments.pairs, arguments.steps)


def _main(folder: Path, brokers: dict[str, str], pairs: int, steps: int) -> None:
    model = save_tiny_bert(folder / "model", tokens=30_522)
    (folder / "squad").mkdir()
    squad = write_squad(folder / "squad")
    stacks: list[Stack] = []
    measures: list[Callable[[], Run]] = []
    try:
        for warm, broker in brokers.items():
            home = folder / f"home-{warm}"
            home.mkdir()
            variables = {"FINETUNE_REDIS_URL": broker, "FINETUNE_WARM_START": warm}
            stack = Stack(home, variables | {"FINETUNE_MODEL_ROOTS": str(model)})
            stacks.append(stack)
            stack.start()
            spec = body(stack, model, squad, steps)
            measures.append(lambda stack=stack, spec=spec: run(stack, spec))  # type: ignore[misc]
            # Later jobs find the imports and the prepared data.
            stack.finish(stack.submit(spec), seconds=WAIT_SECONDS)
        compare(measures[0], measures[1], pairs)
    finally:
        for stack in stacks:
            stack.stop()


if __name__ == "__main__":
    sys.exit(main())
