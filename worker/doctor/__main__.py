"""`python -m worker.doctor`, which `finetune doctor` runs. Exit status: 0 nothing failed (there may
be warnings), 1 a check failed, 2 wrong options, 130 interrupted."""

import argparse
import fcntl
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from service import logging
from service.settings import Settings
from service.system import escaping
from worker.doctor import report, scratch
from worker.doctor.check import Check
from worker.doctor.registry import CHECKS
from worker.doctor.runner import Examination, Line

OK, FAILED, INTERRUPTED = 0, 1, 130
_NICE: Final = 10


def main() -> None:
    options = _parse()
    logging.configure(Settings())
    # Ctrl-C and SIGTERM end the current check, and the report shows how far it got.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    home = Settings().home
    if options.in_background:
        _await_turn(home)
    if not options.json:
        _print(report.TERMINAL_HEADER)
    with scratch.folder(home) as folder:
        checks = [check for check in CHECKS if _is_selected(check, options)]
        examination = Examination(checks, folder, options.in_background)
        examination.run((lambda _line: None) if options.json else _show)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        found = report.as_json(examination, quick=options.quick, thorough=options.thorough)
    _print(escaping.json_line(found) if options.json else f"\n{report.terminal_summary(found)}")
    is_written = _write(found, options)
    if examination.interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(FAILED if found["status"] == "failed" or not is_written else OK)


def _parse() -> argparse.Namespace:
    """The options of `finetune doctor`, whose help describes them. `--in-background`, for workers:
    low priority, one such doctor at a time, no checks that compute on a GPU."""
    parser = argparse.ArgumentParser(prog="finetune doctor", description="Check this machine.")
    names = [check.name for check in CHECKS]
    parser.add_argument("--quick", action="store_true")
    parser.add_argument("--thorough", action="store_true")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", default=[])
    parser.add_argument("--report", type=Path)
    parser.add_argument("--in-background", action="store_true")
    parser.add_argument("--json", action="store_true")
    return parser.parse_args()


def _is_selected(check: Check, options: argparse.Namespace) -> bool:
    if options.only:
        return check.name in options.only
    return check.quick if options.quick else options.thorough or not check.thorough


def _await_turn(home: Path) -> None:
    """Several workers of a machine start at once: run their doctors one after another."""
    os.nice(_NICE)
    with suppress(OSError):  # a file system without locks: they run at the same time
        home.mkdir(parents=True, exist_ok=True)
        flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC
        # Held until this process ends.
        fcntl.flock(os.open(home / "doctor-at-start.lock", flags, 0o600), fcntl.LOCK_EX)


def _show(line: Line) -> None:
    _print(report.terminal_lines(report.of_line(line)))


def _write(found: dict[str, Any], options: argparse.Namespace) -> bool:
    """Write the report files, with --json only if --report names a folder. False if that failed."""
    if options.json and options.report is None:
        return True
    folder = options.report or Path()
    try:
        files = report.write(found, folder)
    except OSError as error:
        sys.stderr.write(
            f"The report cannot be written to {folder} ({error.strerror}): name a "
            "writable folder with --report.\n"
        )
        return False
    if not options.json:
        _print(f"Report: {' and '.join(str(file) for file in files)}")
    return True


def _print(text: str) -> None:
    sys.stdout.write(f"{escaping.terminal(text)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
