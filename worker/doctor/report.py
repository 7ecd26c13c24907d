"""The examination as a table for the terminal and as the two files to attach to an issue."""

import json
import shutil
import textwrap
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from worker.doctor.machine import describe
from worker.doctor.privacy import Cleaner
from worker.doctor.runner import Examination, Line

_FORMAT: Final = 1
# The worst last. A check that was not run says nothing about the machine.
_SHOWN: Final = {"not_run": "not run", "ok": "ok", "warning": "WARNING", "failed": "FAILED"}
_NAME_WIDTH: Final = 24
_STATUS_WIDTH: Final = 9
_MIN_WIDTH: Final = 80
# Lines of a process's output shown on the terminal; the files have more.
_REASON_LINES: Final = 5
TERMINAL_HEADER: Final = f"{'check':{_NAME_WIDTH}}{'result':{_STATUS_WIDTH}}what was found"


def as_json(examination: Examination, *, quick: bool, thorough: bool) -> dict[str, Any]:
    """The whole report without anything that must not be public."""
    statuses: list[str] = [line.finding.status for line in examination.lines]
    return {
        "format": _FORMAT,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        # `ok` if some checks passed and others were not run.
        "status": max(statuses, key=[*_SHOWN].index, default="not_run"),
        "quick": quick,
        "thorough": thorough,
        "interrupted": examination.interrupted,
        "counts": {status: statuses.count(status) for status in _SHOWN},
        "checks": [of_line(line) for line in examination.lines],
        "machine": Cleaner().value(describe(examination.torch)),
        "environment": Cleaner().variables(),
    }


def of_line(line: Line) -> Any:
    """A check and its finding, without anything that must not be public."""
    check, finding = line.check, line.finding.model_dump(mode="json")
    named: dict[str, Any] = {"name": check.name, "title": check.title, "seconds": line.seconds}
    return Cleaner().value(named | finding)


def write(report: dict[str, Any], folder: Path) -> list[Path]:
    """Write both files. Raises OSError if the folder is not writable."""
    folder.mkdir(parents=True, exist_ok=True)
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    contents = {"doctor-report.json": text, "doctor-report.md": _as_markdown(report)}
    for name, content in contents.items():
        (folder / name).write_text(content, encoding="utf-8")
    return [folder / name for name in contents]


def terminal_lines(check: dict[str, Any]) -> str:
    """One row of the table; below it the reason and the remedy, wrapped to the terminal."""
    status, indent = check["status"], " " * (_NAME_WIDTH + _STATUS_WIDTH)
    summary = check["reason"] if status == "not_run" and check["reason"] else check["summary"]
    head = f"{check['name']:{_NAME_WIDTH - 1}} {_SHOWN[status]:{_STATUS_WIDTH}}"
    rows = [_wrapped(summary, head, indent)]
    if status in ("warning", "failed"):
        why = "\n".join(check["reason"].splitlines()[-_REASON_LINES:])
        rows += [_wrapped(why, f"{indent}why:   ", f"{indent}       ")]
        rows += [_wrapped(check["remedy"], f"{indent}to do: ", f"{indent}       ")]
    return "\n".join(rows)


def _wrapped(text: str, first: str, others: str) -> str:
    """Wrap each line separately, so that the output of a process keeps its lines."""
    width = max(_MIN_WIDTH, shutil.get_terminal_size((100, 24)).columns)
    rows: list[str] = []
    for part in text.splitlines() or [""]:
        prefix = others if rows else first
        options: dict[str, Any] = {"initial_indent": prefix, "subsequent_indent": others}
        rows += textwrap.wrap(part, width, break_long_words=False, **options) or [prefix.rstrip()]
    return "\n".join(rows)


def terminal_summary(report: dict[str, Any]) -> str:
    counts = report["counts"]
    parts = f"{counts['ok']} ok, {counts['warning']} with a warning, {counts['failed']} failed, "
    ending = " The doctor was interrupted." if report["interrupted"] else ""
    return f"{parts}{counts['not_run']} not run.{ending}"


def _as_markdown(report: dict[str, Any]) -> str:
    """What the terminal shows, and the rest of the report as JSON."""
    which = "the quick checks" if report["quick"] else "the checks of the machine"
    table = "\n".join([TERMINAL_HEADER, *map(terminal_lines, report["checks"])])
    rest = {name: report[name] for name in ("machine", "environment")}
    return (
        f"# finetune doctor\n\nMade {report['made_at']}; "
        f"{'all checks' if report['thorough'] else which}"
        f"{', interrupted' if report['interrupted'] else ''}; result: "
        f"**{_SHOWN[report['status']]}**.\n\n```\n{table}\n```\n\n"
        f"```json\n{json.dumps(rest, indent=1, ensure_ascii=False)}\n```\n"
    )
