"""The inputs of `finetune try`: options, a file, stdin, or what a person types."""

import json
import re
import sys
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.cli.client import Json
from service.cli.exit_codes import UsageError

_QA: Final = "question-answering"
_WORDS: Final = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")
_TITLE: Final = 100
_TEXT_COLUMNS: Final = {"translation": "source", "token-classification": "tokens"}


@dataclass(frozen=True)
class Given:
    """What the command line has."""

    texts: Sequence[str]
    question: str | None
    context: str | None
    text_pair: str | None
    file: str | None


@dataclass(frozen=True)
class Source:
    rows: Iterable[Json]
    is_interactive: bool = False


def source(task: str, given: Given) -> Source:
    """UsageError for inputs that the task does not take, or that contradict each other."""
    _require_options(task, given)
    if given.file is not None:
        if given.texts or given.question is not None:
            raise UsageError("give inputs or --input, not both")
        return Source(_of_file(task, given.file))
    if task == _QA:
        if given.texts:
            raise UsageError("question-answering takes --question and --context")
        if given.question is not None and given.context is not None:
            return Source([{"question": given.question, "context": given.context}])
        if given.question is not None and not sys.stdin.isatty():
            raise UsageError("--context is missing: the passage with the answer")
    elif given.texts:
        return Source([_of_text(task, text, given.text_pair) for text in given.texts])
    if sys.stdin.isatty():
        return Source(_asked(task, given), is_interactive=True)
    return Source(_of_lines(task, sys.stdin, "stdin"))


def title(row: Mapping[str, Any]) -> str:
    """One line that tells an input from the others."""
    if "question" in row:
        return _short(str(row["question"]))
    tokens = row.get("tokens")
    if isinstance(tokens, list):
        return _short(" ".join(map(str, tokens)))
    return _short(str(row.get("text", row.get("source", row))))


def _require_options(task: str, given: Given) -> None:
    if task != _QA and (given.question is not None or given.context is not None):
        raise UsageError(f"--question and --context are for question-answering, not for {task}")
    if task != "text-classification" and given.text_pair is not None:
        raise UsageError(f"--text-pair is for text-classification, not for {task}")


def _of_text(task: str, text: str, pair: str | None = None) -> Json:
    column = _TEXT_COLUMNS.get(task, "text")
    if column == "tokens":
        return {"tokens": _WORDS.findall(text)}
    return {column: text} | ({} if pair is None else {"text_pair": pair})


def _of_file(task: str, name: str) -> Iterator[Json]:
    if name == "-":
        yield from _of_lines(task, sys.stdin, "stdin")
        return
    try:
        with Path(name).open(encoding="utf-8") as lines:
            yield from _of_lines(task, lines, name)
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text") from error


def _of_lines(task: str, lines: Iterable[str], name: str) -> Iterator[Json]:
    """Each line a JSON object, or for tasks with one input a text."""
    for number, line in enumerate(lines, start=1):
        text = line.rstrip("\r\n")
        if not text.strip():
            continue
        if text.lstrip().startswith("{"):
            yield _object(text, f"{name}, line {number}")
        elif task == _QA:
            raise UsageError(
                f'{name}, line {number} is not a JSON object: {{"question": …, "context": …}}'
            )
        else:
            yield _of_text(task, text)


def _object(text: str, place: str) -> Json:
    try:
        found = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not valid JSON: {error}") from error
    assert isinstance(found, dict), "it starts with a brace"
    return found


def _asked(task: str, given: Given) -> Iterator[Json]:
    """Until Ctrl-D. Prompts go to stderr, answers to stdout."""
    context = given.context
    print("End with Ctrl-D.", file=sys.stderr)  # noqa: T201
    while True:
        try:
            if task != _QA:
                if text := _ask(f"{_TEXT_COLUMNS.get(task, 'text')}> "):
                    yield _of_text(task, text, given.text_pair)
                continue
            again = " (Enter: the same)" if context else ""
            context = (_ask(f"context{again}> ") if given.context is None else None) or context
            question = _ask("question> ") if context else ""
        except EOFError:
            return
        if context and question:
            yield {"question": question, "context": context}


def _ask(prompt: str) -> str:
    """A line that the user types; EOFError at the end."""
    sys.stderr.write(prompt)
    sys.stderr.flush()
    line = sys.stdin.readline()
    if not line:
        sys.stderr.write("\n")
        raise EOFError
    return line.strip()


def _short(text: str) -> str:
    line = " ".join(text.split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"
