"""The inputs of `finetune try`: options, a file, stdin, or what a person types."""

import json
import re
import sys
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.cli.models import try_chat
from service.cli.terminal import output
from service.cli.terminal.client import Json
from service.cli.terminal.exit_codes import UsageError

_QA: Final = "question-answering"
_WORDS: Final = re.compile(r"\w+(?:['\u2019-]\w+)*|[^\w\s]")
_TITLE: Final = 100
_TITLES: Final = ("question", "messages", "prompt", "instruction", "tokens", "text", "source")
"""Columns that identify a row."""
_TEXT_COLUMNS: Final = {"translation": "source", "token-classification": "tokens"}


@dataclass(frozen=True)
class InputOptions:
    """The options of the command line that describe inputs."""

    texts: Sequence[str]
    question: str | None
    context: str | None
    text_pair: str | None
    file: str | None
    system: str | None = None


@dataclass(frozen=True)
class Input:
    row: Json
    place: str
    """Where it was given, for messages: `reviews.txt, line 3`."""


@dataclass(frozen=True)
class Source:
    inputs: Iterable[Input]
    is_interactive: bool = False
    has_lines: bool = False
    """Of a file or of stdin."""
    answered: Callable[[Mapping[str, Any]], None] = lambda _answer: None
    """Called with each answer before the next input is taken: it may be part of that input."""


def source(task: str, given: InputOptions) -> Source:
    """UsageError for inputs that the task does not take, or that contradict each other."""
    _require_options(task, given)
    if given.file not in (None, "-"):
        return Source(_of_lines(task, given, _file(given.file), given.file), has_lines=True)
    if given.question is not None:
        if given.context is None:
            raise UsageError("--context is missing: the passage with the answer")
        row = {"question": given.question, "context": given.context}
        return Source([_input(row, "the input")])
    if given.texts:
        several = len(given.texts) > 1
        return Source(
            [
                _input(_of_text(task, text, given), f"input {number}" if several else "the input")
                for number, text in enumerate(given.texts, start=1)
            ]
        )
    if given.file == "-" or not sys.stdin.isatty():
        return Source(_of_lines(task, given, sys.stdin, "stdin"), has_lines=True)
    if task not in try_chat.COLUMNS:
        return Source(_asked(task, given), is_interactive=True)
    conversation = try_chat.Conversation(task, given.system)
    return Source(_turns(conversation), is_interactive=True, answered=conversation.answered)


def title(row: Mapping[str, Any]) -> str:
    """One line that tells an input from the others: its text, or the last turn."""
    found: Any = row
    for column in _TITLES:
        if row.get(column):
            found = row[column]
            break
    if isinstance(found, list):
        last = found[-1]
        found = last.get("content") if isinstance(last, dict) else " ".join(map(str, found))
    line = " ".join(str(found).split())
    return line if len(line) <= _TITLE else line[: _TITLE - 1] + "…"


def _require_options(task: str, given: InputOptions) -> None:
    if given.file is not None and (given.texts or given.question is not None):
        raise UsageError("give inputs or --input, not both")
    if task == _QA and given.texts:
        raise UsageError("question-answering takes --question and --context")
    if task != _QA and (given.question is not None or given.context is not None):
        raise UsageError(f"--question and --context are for question-answering, not for {task}")
    if task != "text-classification" and given.text_pair is not None:
        raise UsageError(f"--text-pair is for text-classification, not for {task}")
    if task not in try_chat.COLUMNS and given.system is not None:
        raise UsageError(f"--system is for {', '.join(try_chat.COLUMNS)}, not for {task}")


def _input(row: Json, place: str) -> Input:
    try:
        json.dumps(row, ensure_ascii=False).encode()
    except UnicodeEncodeError as error:
        raise UsageError(f"{place} is not UTF-8 text") from error
    return Input(row, place)


def _of_text(task: str, text: str, given: InputOptions) -> Json:
    """A text with what the options add to each."""
    if task == _QA:
        return {"question": text, "context": given.context}
    if task in try_chat.COLUMNS:
        return try_chat.Conversation(task, given.system).says(text)
    if task == "reward":
        raise UsageError(
            "reward scores conversations: give rows with `messages`, or with `prompt` and "
            "`completion`, as JSON lines with --input or on stdin"
        )
    column = _TEXT_COLUMNS.get(task, "text")
    if column == "tokens":
        return {"tokens": _WORDS.findall(text)}
    return {column: text} | ({} if given.text_pair is None else {"text_pair": given.text_pair})


def _file(name: str) -> Iterator[str]:
    try:
        with Path(name).open(encoding="utf-8-sig") as lines:
            yield from lines
    except OSError as error:
        raise UsageError(f"cannot read {name}: {error.strerror}") from error


def _of_lines(task: str, given: InputOptions, lines: Iterable[str], name: str) -> Iterator[Input]:
    """Each line a JSON object, or a text if the options have what else a row needs."""
    is_empty = True
    try:
        for number, line in enumerate(lines, start=1):
            text, place = line.rstrip("\r\n"), f"{name}, line {number}"
            if not text.strip():
                continue
            is_empty = False
            if text.lstrip().startswith("{"):
                yield _input(_row(task, given, text, place), place)
            elif task == _QA and given.context is None:
                raise UsageError(
                    f'{place} is not a JSON object: {{"question": …, "context": …}}. With '
                    "--context a line may be a question"
                )
            else:
                yield _input(_of_text(task, text, given), place)
    except UnicodeDecodeError as error:
        raise UsageError(f"{name} is not UTF-8 text") from error
    if is_empty:
        raise UsageError(f"{name} holds no input")


def _row(task: str, given: InputOptions, text: str, place: str) -> Json:
    """A line of JSON, with what the options add to each row."""
    try:
        row = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise UsageError(f"{place} is not valid JSON: {error}") from error
    options = {"context": given.context, "text_pair": given.text_pair}
    row = {name: value for name, value in options.items() if value is not None} | row
    return row if given.system is None else try_chat.with_system(task, row, given.system, place)


def _asked(task: str, given: InputOptions) -> Iterator[Input]:
    """Until Ctrl-D. Prompts go to stderr, answers to stdout."""
    context = given.context
    output.prompt("End with Ctrl-D.\n")
    while True:
        try:
            if task != _QA:
                if text := _ask(f"{_TEXT_COLUMNS.get(task, 'text')}> "):
                    yield _input(_of_text(task, text, given), "the input")
                continue
            again = " (Enter: the same)" if context else ""
            context = (_ask(f"context{again}> ") if given.context is None else None) or context
            question = _ask("question> ") if context else ""
        except EOFError:
            return
        if context and question:
            yield _input({"question": question, "context": context}, "the input")


def _turns(conversation: try_chat.Conversation) -> Iterator[Input]:
    """Until Ctrl-D. Each input is the conversation so far."""
    output.prompt("End with Ctrl-D. An empty line begins a new conversation.\n")
    while True:
        try:
            text = _ask("user> ")
        except EOFError:
            return
        if text:
            yield _input(conversation.says(text), "the input")
        else:
            conversation.restart()


def _ask(prompt: str) -> str:
    """A line that the user types; EOFError at the end."""
    output.prompt(prompt)
    try:
        line = sys.stdin.readline()
    except UnicodeDecodeError as error:
        raise UsageError("the input is not UTF-8 text") from error
    if not line:
        output.prompt("\n")
        raise EOFError
    return line.strip()
