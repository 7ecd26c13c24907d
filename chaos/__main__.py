"""`python -m chaos`: run the attacks and print a table; exit status 1 if a promise was broken."""

import argparse
import logging
import signal
import sys

import structlog

from chaos.registry import ATTACKS
from chaos.rows import Scale, line, table
from tests.support.servers.packages import UnavailableError


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m chaos", description=__doc__)
    parser.add_argument("--only", nargs="+", choices=ATTACKS, metavar="NAME", default=[*ATTACKS])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument(
        "--short", action="store_true", help="as in `make heavy`, about ten minutes"
    )
    arguments = parser.parse_args()
    # Where an attack calls the service's own code, its warnings are expected.
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    # An attack that is terminated ends its processes.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    scale = Scale.SHORT if arguments.short else Scale.FULL
    print(table([]), flush=True)
    ok = True
    for name in arguments.only:
        try:
            row = ATTACKS[name](arguments.seed, scale)
        except UnavailableError as error:
            print(f"{name} skipped: {error}", file=sys.stderr, flush=True)
            continue
        print(line(row), flush=True)
        ok = ok and row.ok
    sys.exit(0 if ok else 1)


if __name__ == "__main__":
    main()
