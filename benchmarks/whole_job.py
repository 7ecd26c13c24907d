"""Times a whole question-answering job, from POST to `succeeded`, against a script like run_qa.

    python -m benchmarks.whole_job [--steps 50] [--pairs 3]

MiniLM on the bundled SQuAD sample, batch 8, windows of 384. The script's time runs from the start
of its interpreter to its end; it runs with run_qa's defaults (fp32, padded to 384) and with the
best settings (bf16 if the processor has it, padded to the longest and grouped by length). The
service runs in two ways: `cold` starts new interpreters and finds nothing cached, `warm` forks its
stages and finds the data of an earlier job. Both also evaluate the model before its first step,
which the script does not. Each round runs all four, in a rotating order; every process may use all
cores. Printed are seconds to the end of the first step and to the end, the ratios to `warm` and
`cold` with their range, and the mean loss, exact match and F1 of each.
"""

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.start import WAIT_SECONDS, step_of, wait_for
from tests.e2e.stack import Stack
from tests.support import services
from tests.support.models import minilm_dir
from worker.training import precision

ROOT = Path(__file__).resolve().parents[1]
SQUAD = {split: ROOT / f"examples/squad/{split}-v1.1.json" for split in ("train", "validation")}
Measures = dict[str, float]


def reference(folder: Path, steps: int, *, best: bool) -> Measures:
    with tempfile.TemporaryDirectory(dir=folder) as output:
        command = [sys.executable, "-m", "benchmarks.reference_job", "--output", output]
        command += ["--model", str(minilm_dir()), "--steps", str(steps)]
        command += [part for split, path in SQUAD.items() for part in (f"--{split}", str(path))]
        if best:
            command += ["--best"] + ["--bf16"] * precision.cpu_has_bf16()
        # Removes what an earlier round has tokenized.
        environment = {**os.environ, "HF_HUB_OFFLINE": "1", "HF_HOME": output}
        environment["OMP_NUM_THREADS"] = str(os.cpu_count())
        begun = time.monotonic()
        done = subprocess.run(command, env=environment, cwd=ROOT, capture_output=True, text=True)
        whole = time.monotonic() - begun
    if done.returncode:
        raise SystemExit(done.stderr)
    said: Measures = json.loads(done.stdout.splitlines()[-1])
    return {"whole": whole, **said}


def service(stack: Stack, spec: dict[str, Any], *, cached: bool) -> Measures:
    if not cached:
        shutil.rmtree(stack.home / "cache", ignore_errors=True)
    begun = time.monotonic()
    job_id = stack.submit(spec)
    first_step = wait_for(stack, job_id, lambda job: step_of(job) >= 1) - begun
    whole = wait_for(stack, job_id, lambda job: job["state"] == "succeeded") - begun
    metrics = stack.job(job_id)["result"]["metrics"]
    return {
        "whole": whole,
        "first_step": first_step,
        "loss": metrics["train_loss"],
        "exact_match": metrics["eval_exact_match"],
        "f1": metrics["eval_f1"],
    }


def started(parts: ExitStack, folder: Path, *, warm: bool) -> Stack:
    home = folder / ("warm" if warm else "cold")
    home.mkdir()
    variables = {
        "FINETUNE_REDIS_URL": parts.enter_context(services.broker(services.valkey_binary())),
        "FINETUNE_WARM_START": str(int(warm)),
        "FINETUNE_MODEL_ROOTS": str(minilm_dir()),
        "OMP_NUM_THREADS": str(os.cpu_count()),
    }
    stack = Stack(home, variables)
    parts.callback(stack.stop)
    stack.start()
    return stack


def body(stack: Stack, steps: int) -> dict[str, Any]:
    files = {split: stack.upload(path) for split, path in SQUAD.items()}
    return {
        "task": {"type": "question-answering", "max_seq_length": 384, "doc_stride": 128},
        "model": {"name_or_path": str(minilm_dir())},
        "dataset": {"source": "upload", **files},
        "training": {"max_steps": steps, "logging_steps": 1, "save_strategy": "no"},
        "resources": {"gpus": 0},
    }


def compare(sides: dict[str, Callable[[], Measures]], pairs: int) -> None:
    rounds: list[dict[str, Measures]] = []
    for number in range(pairs):
        names = list(sides)
        first = number % len(names)
        rounds.append({})
        for name in names[first:] + names[:first]:
            rounds[-1][name] = found = sides[name]()
            print(f"{name:22} {_told(found)}", flush=True)
    print(f"\n{pairs} rounds, medians; load {os.getloadavg()[0]:.1f}")
    for name in sides:
        every = [each[name] for each in rounds]
        print(f"{name:22} {_told({key: _median(every, key) for key in every[0]})}")
    for theirs in list(sides)[:2]:
        for ours in list(sides)[2:]:
            ratios = sorted(each[theirs]["whole"] / each[ours]["whole"] for each in rounds)
            print(
                f"{theirs} / {ours}: {statistics.median(ratios):.2f}x "
                f"({ratios[0]:.2f} to {ratios[-1]:.2f})"
            )


def _median(found: list[Measures], name: str) -> float:
    return statistics.median(each[name] for each in found)


def _told(found: Measures) -> str:
    return (
        f"first step {found['first_step']:6.2f} s  whole {found['whole']:6.1f} s  "
        f"loss {found['loss']:.3f}  EM {found['exact_match']:.2f}  F1 {found['f1']:.2f}"
    )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--steps", type=int, default=50)
    parser.add_argument("--pairs", type=int, default=3)
    options = parser.parse_args()
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        cold = started(parts, folder, warm=False)
        warm = started(parts, folder, warm=True)
        spec = body(warm, options.steps)
        # Later jobs find the imports and the prepared data.
        warm.finish(warm.submit(spec), seconds=WAIT_SECONDS)
        sides: dict[str, Callable[[], Measures]] = {
            "script, its defaults": partial(reference, folder, options.steps, best=False),
            "script, at its best": partial(reference, folder, options.steps, best=True),
            "service, cold": partial(service, cold, body(cold, options.steps), cached=False),
            "service, warm": partial(service, warm, spec, cached=True),
        }
        compare(sides, options.pairs)


if __name__ == "__main__":
    main()
