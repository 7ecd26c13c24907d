"""`python -m worker.doctor.run_check <name> <folder>`: run one check in this process.

The folder holds `context.json`; the finding is written there as `finding.json`.
"""

import importlib
import sys
from pathlib import Path
from typing import Final

from worker.doctor.check import Check, Context, Finding, Run
from worker.doctor.registry import CHECKS

CONTEXT: Final = "context.json"
FINDING: Final = "finding.json"


def function_of(check: Check) -> Run:
    """The code of a check; imports what that needs."""
    file, _, name = check.run.partition(":")
    run: Run = getattr(importlib.import_module(f"worker.doctor.checks.{file}"), name)
    return run


def main() -> None:
    name, folder = sys.argv[1], Path(sys.argv[2])
    context = Context.model_validate_json((folder / CONTEXT).read_bytes())
    check = next(check for check in CHECKS if check.name == name)
    finding: Finding = function_of(check)(context)
    # Renamed, so that a process that is killed meanwhile leaves no half finding.
    partial = folder / f"{FINDING}.partial"
    partial.write_text(finding.model_dump_json(), encoding="utf-8")
    partial.rename(folder / FINDING)


if __name__ == "__main__":
    main()
