"""`finetune doctor`: check this machine with the worker's packages."""

import importlib.util
import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from service.cli.terminal.exit_codes import UsageError
from service.system import own_packages

_NEEDED = ("torch", "transformers", "accelerate", "pynvml", "psutil")


def doctor(
    *,
    quick: Annotated[bool, typer.Option("--quick", help="Only what takes seconds.")] = False,
    thorough: Annotated[
        bool, typer.Option("--thorough", help="Also train, resume and ask a model of every task.")
    ] = False,
    only: Annotated[
        list[str] | None, typer.Option(metavar="NAME", help="This check; may be repeated.")
    ] = None,
    report: Annotated[
        Path | None,
        typer.Option(metavar="FOLDER", help="Of doctor-report.json and .md. Default: this folder."),
    ] = None,
    as_json: Annotated[
        bool, typer.Option("--json", help="The report on stdout; files only with --report.")
    ] = False,
) -> None:
    """Check driver, torch, memory, precisions and small trainings here; write a report.

    Exit status: 0 no check failed (there may be warnings), 1 a check failed, 130 interrupted.
    """
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"the doctor checks what a worker needs, and here {', '.join(missing)} cannot be "
            "imported: install finetune-service[worker] (with containers: "
            "`docker compose run --rm worker finetune doctor`)"
        )
    options = ["--quick"] * quick + ["--thorough"] * thorough + ["--json"] * as_json
    options += [part for name in only or [] for part in ("--only", name)]
    options += ["--report", str(report)] if report is not None else []
    # Replaced, not imported: the control plane never loads torch.
    os.execv(sys.executable, own_packages.python("worker.doctor", *options))
