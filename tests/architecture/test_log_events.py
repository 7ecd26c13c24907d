"""Log events are stable keys such as `job.claimed`; what varies is in fields."""

import ast
import re
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# A stage logs with the standard library, which has no fields: it writes them behind the key.
KEY = re.compile(r"[a-z][a-z0-9_]*(\.[a-z0-9_]+)+( [a-z_]+=%s)*")
LEVELS = {"debug", "info", "warning", "error", "exception", "critical"}
LOGGERS = {"log", "_log"}


def events(source: str) -> Iterator[str | None]:
    """The event of each log call; None if it is not written in the call."""
    for node in ast.walk(ast.parse(source)):
        if not isinstance(node, ast.Call) or not isinstance(node.func, ast.Attribute):
            continue
        logger = node.func.value
        name = logger.attr if isinstance(logger, ast.Attribute) else getattr(logger, "id", None)
        if name in LOGGERS and node.func.attr in LEVELS:
            yield _text(node.args[0]) if node.args else None


def _text(argument: ast.expr) -> str | None:
    """A literal, or an f-string whose variable parts count as words."""
    if isinstance(argument, ast.Constant) and isinstance(argument.value, str):
        return argument.value
    if isinstance(argument, ast.JoinedStr):
        parts = (part.value if isinstance(part, ast.Constant) else "x" for part in argument.values)
        return "".join(str(part) for part in parts)
    return None


def test_every_log_event_is_a_dotted_key() -> None:
    found = {
        str(file.relative_to(ROOT)): list(events(file.read_text()))
        for wing in ("service", "worker")
        for file in (ROOT / wing).rglob("*.py")
    }
    assert sum(map(len, found.values())) > 40
    wrong = {
        file: bad
        for file, logged in found.items()
        if (bad := [event for event in logged if event is None or not KEY.fullmatch(event)])
    }
    assert not wrong


def test_sentences_and_variables_are_found() -> None:
    source = 'log.info("the job has ended")\nself._log.warning(text)\nlog.error("job.failed")\n'
    assert list(events(source)) == ["the job has ended", None, "job.failed"]
    assert not KEY.fullmatch("the job has ended")
    assert KEY.fullmatch("weights.not_shared error=%s")
    assert not KEY.fullmatch("weights.not_shared because of %s")
