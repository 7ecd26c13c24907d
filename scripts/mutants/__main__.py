"""`make mutants`: draw mutants of the core modules, run their tests, print those that survive."""

import argparse
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from scripts.mutants import equivalents
from scripts.mutants.operators import Mutant, mutants_of
from scripts.mutants.runner import Tree
from scripts.mutants.targets import TARGETS

ROOT = Path(__file__).parents[2]


@dataclass
class Score:
    killed: int = 0
    timed_out: int = 0
    """Of those killed."""
    equivalent: int = 0
    survivors: list[Mutant] = field(default_factory=list)

    @property
    def run(self) -> int:
        return self.killed + len(self.survivors)

    @property
    def percent(self) -> float:
        return 100 * self.killed / self.run if self.run else 100.0

    def add(self, other: "Score") -> None:
        self.killed += other.killed
        self.timed_out += other.timed_out
        self.equivalent += other.equivalent
        self.survivors += other.survivors

    def __str__(self) -> str:
        late = f" ({self.timed_out} by the time limit)" if self.timed_out else ""
        same = f", {self.equivalent} equivalent ones left out" if self.equivalent else ""
        return f"{self.killed} of {self.run} killed{late}{same}: {self.percent:.1f} %"


class BrokenTestsError(Exception):
    """The tests of a module fail without any change."""


def draw(path: str, source: str, size: int, seed: int) -> list[Mutant]:
    """`size` mutants of the module, or all if `size` is 0; the same for the same seed."""
    found = mutants_of(path, source)
    if not 0 < size < len(found):
        return found
    chosen = random.Random(f"{seed} {path}").sample(range(len(found)), size)
    return [found[number] for number in sorted(chosen)]


def measure(tree: Tree, path: str, tests: Sequence[str], mutants: Sequence[Mutant]) -> Score:
    score = Score()
    known = equivalents.load()
    tried = [mutant for mutant in mutants if equivalents.key(mutant) not in known]
    score.equivalent = len(mutants) - len(tried)
    source = (tree.root / path).read_text()
    unchanged = tree.run(tests, 1800)
    if unchanged.code != 0:
        raise BrokenTestsError(f"{path}: its tests fail without any change\n{unchanged.output}")
    limit = 60 + 5 * unchanged.seconds
    for mutant in tried:
        tree.write(path, mutant.source)
        done = tree.run(tests, limit)
        if done.code == 0:
            score.survivors.append(mutant)
            print(f"\n{mutant}", flush=True)
        else:
            score.killed += 1
            score.timed_out += done.code is None
    tree.write(path, source)
    return score


def _targets(prefixes: Sequence[str]) -> Iterator[tuple[str, tuple[str, ...]]]:
    for path, tests in TARGETS.items():
        if not prefixes or any(path.startswith(prefix) for prefix in prefixes):
            yield path, tests


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="make mutants", description=__doc__)
    parser.add_argument("modules", nargs="*", help="files or folders; without: all of the table")
    parser.add_argument("--sample", type=int, default=10, help="mutants per module; 0: all")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--at-least", type=float, default=96.0, help="percent, else status 1")
    return parser.parse_args()


def main() -> int:
    given = _arguments()
    # Several threads do not survive a fork.
    os.environ["OMP_NUM_THREADS"] = "1"
    # No TemporaryDirectory: forked processes would remove it when they end.
    folder = Path(tempfile.mkdtemp(prefix="mutants-"))
    try:
        return _measure_all(Tree(ROOT, folder), given)
    finally:
        shutil.rmtree(folder)


def _measure_all(tree: Tree, given: argparse.Namespace) -> int:
    total, broken = Score(), []
    for path, tests in _targets(given.modules):
        began = time.monotonic()
        source = (tree.root / path).read_text()
        try:
            score = measure(tree, path, tests, draw(path, source, given.sample, given.seed))
        except BrokenTestsError as error:
            broken.append(path)
            print(f"\n{error}", flush=True)
            continue
        total.add(score)
        print(f"{path}: {score} ({time.monotonic() - began:.0f} s)", flush=True)
    print(f"\nseed {given.seed}, {given.sample or 'all'} per module: {total}")
    if broken:
        print(f"not measured: {', '.join(broken)}")
    return int(bool(broken) or total.percent < given.at_least)


if __name__ == "__main__":
    sys.exit(main())
