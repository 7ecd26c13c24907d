"""Time what is needed to find and word every fault of a spec, for hostile bodies of 1 MiB.

    python -m benchmarks.faulty_bodies [--calls 5]

Prints for each body its size, the faults that are listed, and the least CPU time of several calls:
of parsing the JSON, and of finding the faults. Then the slowest of about 8,000 bodies that have one
of the worst values in one field each.
"""

import argparse
import json
import time
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from typing import Any, Final

from service.api.body import parse_json
from service.api.errors import InvalidJsonError
from service.api.faults.collect import Findings, collect
from tests.api.factories import SPEC, spec
from tests.api.hostile_bodies import hostile_bodies
from tests.api.worst_values import bodies as bodies_of
from tests.api.worst_values import places

_SHOWN: Final = 10


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--calls", type=int, default=5)
    calls = parser.parse_args().calls
    bodies = {
        "valid": SPEC,
        "one fault": spec(training={"learning_rte": 1e-4}),
        **hostile_bodies(),
    }
    collect(SPEC)
    print(f"{'body':34}{'KiB':>7}{'faults':>8}{'parse, ms':>11}{'faults, ms':>12}")
    for name, body in bodies.items():
        raw = json.dumps(body).encode()
        parsing = least(partial(parse_json, raw), calls)
        finding = least(partial(collect, body), calls)
        faults = len(collect(body).faults)
        print(f"{name:34}{len(raw) // 1024:7}{faults:8}{parsing:11.1f}{finding:12.1f}")
    print_worst_values()


def examined(raw: bytes) -> Findings:
    return collect(parse_json(raw))


def print_worst_values() -> None:
    """The slowest of the worst values in each field of a spec."""
    slowest = []
    for path, template in places():
        for name, raw in bodies_of(template):
            with suppress(InvalidJsonError):
                slowest.append((least(partial(examined, raw), 1), path, name))
    print(f"\n{len(slowest):,} bodies with the worst values; the slowest, ms:")
    for taken, path, name in sorted(slowest, reverse=True)[:_SHOWN]:
        print(f"{taken:8.1f}  {path}: {name}")


def least(call: Callable[[], Any], calls: int) -> float:
    """Milliseconds of CPU time."""
    taken = []
    for _ in range(calls):
        start = time.process_time()
        call()
        taken.append(time.process_time() - start)
    return min(taken) * 1000


if __name__ == "__main__":
    main()
