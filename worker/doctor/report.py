"""The examination as a table for the terminal and as the two files to attach to an issue."""

import json
import shutil
import textwrap
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

from pydantic import JsonValue

from worker.doctor.check import Status
from worker.doctor.machine import describe
from worker.doctor.privacy import Cleaner
from worker.doctor.runner import Examination, Line

FORMAT: Final = 1
JSON_NAME: Final = "doctor-report.json"
MARKDOWN_NAME: Final = "doctor-report.md"
# The worst last. A check that was not run says nothing about the machine.
_RANKS: Final[tuple[Status, ...]] = ("not_run", "ok", "warning", "failed")
_SHOWN: Final[dict[Status, str]] = {
    "ok": "ok",
    "warning": "WARNING",
    "failed": "FAILED",
    "not_run": "not run",
}
_NAME_WIDTH: Final = 24
_STATUS_WIDTH: Final = 9
_MIN_WIDTH: Final = 80
# Lines of a process's output shown on the terminal; the files have more.
_REASON_LINES: Final = 5


def worst(lines: Sequence[Line]) -> Status:
    """The worst status; `ok` if some checks passed and others were not run."""
    return max((line.finding.status for line in lines), key=_RANKS.index, default="not_run")


def as_json(examination: Examination, *, quick: bool, thorough: bool) -> dict[str, JsonValue]:
    """The whole report without anything that must not be public."""
    lines = examination.lines
    cleaner = Cleaner()
    report: dict[str, JsonValue] = {
        "format": FORMAT,
        "made_at": datetime.now(UTC).isoformat(timespec="seconds"),
        "status": worst(lines),
        "quick": quick,
        "thorough": thorough,
        "interrupted": examination.interrupted,
        "counts": {rank: sum(x.finding.status == rank for x in lines) for rank in _RANKS},
        "checks": [
            {
                **{"name": line.check.name, "title": line.check.title, "seconds": line.seconds},
                **line.finding.model_dump(mode="json"),
            }
            for line in lines
        ],
        "machine": describe(examination.torch),
    }
    cleaned = cleaner.value(report)
    assert isinstance(cleaned, dict)
    return {**cleaned, "environment": dict(cleaner.variables())}


def write(report: dict[str, JsonValue], lines: Sequence[Line], folder: Path) -> list[Path]:
    """Write both files. Raises OSError if the folder is not writable."""
    folder.mkdir(parents=True, exist_ok=True)
    files = [folder / JSON_NAME, folder / MARKDOWN_NAME]
    text = json.dumps(report, indent=1, ensure_ascii=False) + "\n"
    for file, content in zip(files, (text, as_markdown(report, lines)), strict=True):
        file.write_text(content, encoding="utf-8")
    return files


# ---- the terminal ---------------------------------------------------------------------------


def terminal_header() -> str:
    return f"{'check':{_NAME_WIDTH}}{'result':{_STATUS_WIDTH}}what was found"


def terminal_lines(line: Line) -> str:
    """One row of the table; below it the reason and the remedy, wrapped to the terminal."""
    finding, indent = line.finding, " " * (_NAME_WIDTH + _STATUS_WIDTH)
    summary = finding.reason if finding.status == "not_run" and finding.reason else finding.summary
    head = f"{line.check.name:{_NAME_WIDTH - 1}} {_SHOWN[finding.status]:{_STATUS_WIDTH}}"
    rows = [_wrapped(summary, head, indent)]
    if finding.status in ("warning", "failed"):
        why = "\n".join(finding.reason.splitlines()[-_REASON_LINES:])
        rows += [_wrapped(why, f"{indent}why:   ", f"{indent}       ")]
        rows += [_wrapped(finding.remedy, f"{indent}to do: ", f"{indent}       ")]
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


def terminal_summary(examination: Examination) -> str:
    counts = {rank: sum(x.finding.status == rank for x in examination.lines) for rank in _RANKS}
    parts = f"{counts['ok']} ok, {counts['warning']} with a warning, {counts['failed']} failed, "
    ending = " The doctor was interrupted." if examination.interrupted else ""
    return f"{parts}{counts['not_run']} not run.{ending}"


# ---- Markdown -------------------------------------------------------------------------------


def as_markdown(report: dict[str, Any], lines: Sequence[Line]) -> str:
    """What the terminal shows, and the rest of the report as JSON."""
    which = "the quick checks" if report["quick"] else "the checks of the machine"
    table = "\n".join([terminal_header(), *map(terminal_lines, lines)])
    rest = {name: report[name] for name in ("machine", "environment")}
    return (
        f"# finetune doctor\n\nMade {report['made_at']}; "
        f"{'all checks' if report['thorough'] else which}"
        f"{', interrupted' if report['interrupted'] else ''}; result: "
        f"**{_SHOWN[report['status']]}**.\n\n```\n{Cleaner().text(table)}\n```\n\n"
        f"```json\n{json.dumps(rest, indent=1, ensure_ascii=False)}\n```\n"
    )
