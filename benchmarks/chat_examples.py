"""Runs the example specs of conversations and preferences with SmolLM2-135M-Instruct, as they are.

    python -m benchmarks.chat_examples [--scratch FOLDER] [--model FOLDER] [--steps N] [NAME…]

On the CPU, through the real stages. Without --steps each takes the epochs of its spec; without
names: chat, preference, reward, and chat-qlora with 8 bits, the fewest that a CPU computes with.
Prints each metric before and after the training, its time and memory, and a sample.
"""

import argparse
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, Final

from benchmarks import trl_scratch
from service.contract.stages import TrainResult
from tests.tasks.examples import example_spec
from tests.tasks.stages import StagedJob

NAMES: Final = ("chat", "preference", "reward", "chat-qlora")


def body(name: str, model: Path, steps: int | None) -> dict[str, Any]:
    """The spec with the model on disk, on the CPU."""
    spec = example_spec(name)
    spec["model"] = {**spec["model"], "name_or_path": str(model)}
    spec["training"] |= {"max_steps": steps or -1, "logging_steps": 10}
    spec["resources"] = {"gpus": 0}
    if "quantization" in spec["peft"]:
        spec["peft"]["quantization"] = {"bits": 8}
        spec["training"]["optim"] = "adamw_torch"
    return spec


def show(name: str, result: TrainResult, seconds: float) -> None:
    print(
        f"{name}: {result.steps} steps, {seconds:.0f} s with evaluations, "
        f"{result.metrics['train_peak_memory_bytes'] / 2**30:.2f} GiB",
        flush=True,
    )
    for metric, before in sorted(result.baseline.items()):
        print(f"  {metric:<26} {before:9.4f} -> {result.metrics[metric]:9.4f}", flush=True)
    for sample in (result.samples or [])[:1]:
        print(f"  {sample}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--scratch", type=Path, default=trl_scratch.FOLDER)
    parser.add_argument("--model", type=Path)
    parser.add_argument("--steps", type=int)
    parser.add_argument("names", nargs="*", metavar="NAME", help=", ".join(NAMES))
    given = parser.parse_args()
    model = given.model or trl_scratch.smollm2(given.scratch)
    for name in given.names or NAMES:
        with tempfile.TemporaryDirectory() as folder:
            job = StagedJob(Path(folder), body(name, model, given.steps))
            job.prepare()
            begun = time.monotonic()
            result, _ = job.train()
            show(name, result, time.monotonic() - begun)


if __name__ == "__main__":
    sys.exit(main())
