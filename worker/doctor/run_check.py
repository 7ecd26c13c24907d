"""`python -m worker.doctor.run_check <module>:<function> <folder>`: run one check in this process.

The folder holds `context.json`; the finding is written there as `finding.json`.
"""

import importlib
import sys
from pathlib import Path
from typing import Final

from worker.doctor.check import Context, Finding, Run

CONTEXT: Final = "context.json"
FINDING: Final = "finding.json"


def function_of(reference: str) -> Run:
    """Import and return the function `module:function` of a check."""
    module, _, name = reference.partition(":")
    run: Run = getattr(importlib.import_module(module), name)
    return run


def main() -> None:
    reference, folder = sys.argv[1], Path(sys.argv[2])
    context = Context.model_validate_json((folder / CONTEXT).read_bytes())
    finding: Finding = function_of(reference)(context)
    # Renamed, so that a process killed meanwhile leaves no partial finding.
    partial = folder / f"{FINDING}.partial"
    partial.write_text(finding.model_dump_json(), encoding="utf-8")
    partial.rename(folder / FINDING)


if __name__ == "__main__":
    main()
