"""`python -m worker.doctor`, which `finetune doctor` runs. Exit status: 0 nothing failed (there may
be warnings), 1 a check failed, 2 wrong options, 130 interrupted."""

import argparse
import fcntl
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Final

from pydantic import JsonValue

from service import escaping, logging
from service.settings import Settings
from worker.doctor import report, scratch
from worker.doctor.check import Check
from worker.doctor.privacy import Cleaner
from worker.doctor.registry import CHECKS
from worker.doctor.runner import Doctor, Line

OK, FAILED, INTERRUPTED = 0, 1, 130
_NICE: Final = 10


def main() -> None:
    arguments = _parse()
    logging.configure(Settings())
    # Ctrl-C and SIGTERM end the current check, and the report shows how far it got.
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    checks = [check for check in CHECKS if _is_selected(check, arguments)]
    if not arguments.json:
        _print(report.terminal_header())
    background = arguments.in_background
    home = Settings().home
    with _turn(home) if background else nullcontext(), scratch.folder(home) as folder:
        doctor = Doctor(checks, folder, in_background=background)
        examination = doctor.examine((lambda _line: None) if arguments.json else _show)
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)
        found = report.as_json(examination, quick=arguments.quick, thorough=arguments.thorough)
    if arguments.json:
        _print(escaping.json_line(found))
    else:
        _print(f"\n{report.terminal_summary(examination)}")
    is_written = _write(found, examination.lines, arguments)
    if examination.interrupted:
        sys.exit(INTERRUPTED)
    sys.exit(FAILED if found["status"] == "failed" or not is_written else OK)


def _parse() -> argparse.Namespace:
    names = [check.name for check in CHECKS]
    parser = argparse.ArgumentParser(prog="finetune doctor", description="Check this machine.")
    parser.add_argument(
        "--quick",
        action="store_true",
        help="run only the quick checks, which take seconds and train nothing",
    )
    parser.add_argument(
        "--thorough", action="store_true", help="also compare every task with the expected numbers"
    )
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", default=[])
    parser.add_argument(
        "--report", type=Path, help="folder for the two report files (default: the current folder)"
    )
    parser.add_argument(
        "--in-background",
        action="store_true",
        help="low priority, one such doctor at a time, no checks that compute on a GPU",
    )
    parser.add_argument("--json", action="store_true", help="print JSON; files only with --report")
    return parser.parse_args()


def _is_selected(check: Check, arguments: argparse.Namespace) -> bool:
    if arguments.only:
        return check.name in arguments.only
    return check.quick if arguments.quick else arguments.thorough or not check.thorough


@contextmanager
def _turn(home: Path) -> Iterator[None]:
    """Several workers of a machine start at once: run their doctors one after another."""
    os.nice(_NICE)
    lock = home / "doctor-at-start.lock"
    with suppress(OSError):  # a file system without locks: they run at the same time
        home.mkdir(parents=True, exist_ok=True)
        # Held until this process ends.
        fcntl.flock(os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600), fcntl.LOCK_EX)
    yield


def _show(line: Line) -> None:
    _print(Cleaner().text(report.terminal_lines(line)))


def _write(
    found: dict[str, JsonValue], lines: Sequence[Line], arguments: argparse.Namespace
) -> bool:
    """Write the report files, with --json only if --report names a folder. False if that failed."""
    if arguments.json and arguments.report is None:
        return True
    folder = arguments.report or Path()
    try:
        files = report.write(found, lines, folder)
    except OSError as error:
        sys.stderr.write(
            f"The report cannot be written to {folder} ({error.strerror}): name a "
            "writable folder with --report.\n"
        )
        return False
    if not arguments.json:
        _print(f"Report: {' and '.join(str(file) for file in files)}")
    return True


def _print(text: str) -> None:
    sys.stdout.write(f"{escaping.terminal(text)}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    main()
