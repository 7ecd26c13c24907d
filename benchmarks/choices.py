"""Compares the rules and constants of a training on this machine with other values.

    python -m benchmarks.choices [qa mlm clm lora] [--steps 12] [--rounds 3]

Threads, allocator, spinning, sizes of tiles and chunks, optimizer, loader and padding are constants
or follow a rule. Each round trains with the choices as they are, then with each of the others, and
then as they are again. Printed is the median of the tokens per second, as a share of those of the
round's two ends, with its range; in the first line the share of the second end in the first, which
is the noise. A choice whose other value is more than 5 % faster on some machine should be measured.
"""

import argparse
import itertools
import os
import statistics
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType
from typing import Any

import psutil

from benchmarks import training_speed
from benchmarks.cases import Case
from benchmarks.training_speed import Process
from worker.processes import allocator
from worker.training.kernels import cpu_attention
from worker.training.loss import chunked_cross_entropy


@dataclass(frozen=True)
class Variant:
    """What differs from the choices as they are."""

    name: str
    process: Process = training_speed.AS_A_WORKER
    options: dict[str, Any] = field(default_factory=dict)


def variants(case: Case) -> Iterator[Variant]:
    cores = psutil.cpu_count(logical=False) or 1
    if cores != os.cpu_count():
        yield Variant(f"threads: {cores}", Process(threads=cores))
    for malloc in (allocator.SYSTEM, allocator.KEEPING):
        if malloc != training_speed.malloc():
            yield Variant(f"allocator: {malloc}", Process(malloc=malloc))
    for spins in ("0", "300000"):
        name = f"GOMP_SPINCOUNT: {spins}"
        yield Variant(name, Process(variables={"GOMP_SPINCOUNT": spins}))
    for factor in (0.25, 4):
        yield Variant(f"tiles of attention x {factor}", _changed(cpu_attention, "_TILE", factor))
        if case.name != "qa":
            process = _changed(chunked_cross_entropy, "_CHUNK_NUMBERS", factor)
            yield Variant(f"chunks of the loss x {factor}", process)
    if case.name in ("clm", "lora"):
        for factor in (0.5, 2):
            process = _changed(cpu_attention, "_CAUSAL_ROWS", factor)
            yield Variant(f"rows of causal tiles x {factor}", process)
    yield Variant("optim: adamw_torch", options={"optim": "adamw_torch"})
    yield Variant("dataloader_num_workers: 1", options={"dataloader_num_workers": 1})
    yield Variant("padding_free: false", options={"padding_free": False})


def _changed(module: ModuleType, constant: str, factor: float) -> Process:
    """With another value of a constant."""
    value = int(getattr(module, constant) * factor)
    return Process(before=f"import {module.__name__} as changed; changed.{constant} = {value}")


def compare(name: str, folder: Path, *, steps: int, rounds: int) -> None:
    folder.mkdir()
    case, prepared = training_speed.prepared(name, folder, steps=steps)
    numbers = itertools.count()

    def rate(variant: Variant) -> float:
        number = next(numbers)
        return training_speed.ours(case, number, prepared, variant.process, **variant.options).rate

    as_it_is, others = Variant("as it is, again"), list(variants(case))
    shares: dict[str, list[float]] = {each.name: [] for each in (as_it_is, *others)}
    rate(as_it_is)  # fills the caches of files
    for _ in range(rounds):
        first = rate(as_it_is)
        found = {each.name: rate(each) for each in others}
        last = rate(as_it_is)
        shares[as_it_is.name].append(last / first)
        for variant, other in found.items():
            shares[variant].append(2 * other / (first + last))
    for variant, each in shares.items():
        spread = f"({min(each):.2f} to {max(each):.2f})"
        print(f"{name} {variant:40} {statistics.median(each):5.2f} {spread}", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("tasks", nargs="*", default="all", choices=[*training_speed.TASKS, "all"])
    parser.add_argument("--steps", type=int, default=12)
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        for name in training_speed.TASKS if "all" in options.tasks else options.tasks:
            compare(name, Path(folder) / name, steps=options.steps, rounds=options.rounds)
    print(f"malloc {training_speed.malloc()}   load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
