"""Compares with TRL 1.16. Three cases: `losses` and rewards in numbers, `masks` (which tokens are
trained), `speed` and memory.

    python -m benchmarks.trl (losses | masks | speed) [ARGUMENTS] [--scratch FOLDER]

Each case is a module of this folder, whose first paragraphs describe it and its arguments.
"""

import argparse
import sys
from pathlib import Path
from typing import Final

from benchmarks.trl import losses, masks, scratch, speed

CASES: Final = {"losses": losses, "masks": masks, "speed": speed}


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.trl")
    commands = parser.add_subparsers(required=True, metavar="{" + ",".join(CASES) + "}")
    for name, case in CASES.items():
        description = (case.__doc__ or "").partition("\n")[0]
        command = commands.add_parser(name, help=description, description=description)
        case.add_arguments(command)
        command.add_argument("--scratch", type=Path, default=scratch.FOLDER)
        command.set_defaults(run=case.run)
    options = parser.parse_args()
    status: int = options.run(options)
    return status


if __name__ == "__main__":
    sys.exit(main())
