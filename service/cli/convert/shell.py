"""The commands in a shell script: words, variables, and what precedes the script's name."""

import re
import shlex
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import PurePath

from service.cli.exit_codes import UsageError

_OPERATORS = frozenset({";", "&", "&&", "|", "||", ";;"})
_KEYWORDS = frozenset({"do", "then", "else", "time", "nohup", "exec", "sudo", "env", "!", "{"})
_REDIRECTION = re.compile(r"(?<=\s)(?:\d|&)?(?:>>?|<)\s*(?:&\d|[^\s;|&]+)")
_ASSIGNMENT = re.compile(r"([A-Za-z_]\w*)=(.*)", re.S)
# ${NAME}, ${NAME:-default}, ${NAME:?sentence} and $NAME; then what would have to be run.
_VARIABLE = re.compile(r"\$(?:\{(\w+)(?::?-([^}]*)|:?\?[^}]*)?\}|(\w+)|([({]))")
_SCRIPT = re.compile(r"run_\w+\.py|(?:sft|dpo|kto|reward)\.py")
_TRL = frozenset({"sft", "dpo", "kto", "reward", "grpo", "rloo"})
"""Commands of `trl`."""


@dataclass(frozen=True)
class Command:
    """`ENV=… launcher --options run_x.py arguments`, taken apart."""

    script: str
    """Its name without folder and `.py`; of `trl sft` the second word."""
    arguments: tuple[str, ...]
    launcher: tuple[str, ...]
    environment: Mapping[str, str] = field(default_factory=dict)


def commands(text: str, environ: Mapping[str, str]) -> list[Command]:
    """Every command of a shell script that runs some `run_….py`, or TRL.

    `environ` has variables that the script itself does not set. Raises UsageError for a variable
    that nobody sets, and for quotes that do not close.
    """
    variables: dict[str, str] = {}
    found = []
    for words in _simple_commands(text):
        command = _command(words, variables, environ)
        if command is not None:
            found.append(command)
    return found


def of_words(words: list[str], environ: Mapping[str, str]) -> Command | None:
    """The command that the user's own shell has taken apart already."""
    at = _script_at(words)
    if at is None:
        return None
    assigned = [match for word in words[:at] if (match := _ASSIGNMENT.fullmatch(word))]
    launcher = tuple(word for word in words[:at] if not _ASSIGNMENT.fullmatch(word))
    visible = {name: environ[name] for name in ("CUDA_VISIBLE_DEVICES",) if name in environ}
    environment = visible | {match[1]: match[2] for match in assigned}
    return Command(PurePath(words[at]).stem, tuple(words[at + 1 :]), launcher, environment)


def _command(
    words: list[str], variables: dict[str, str], environ: Mapping[str, str]
) -> Command | None:
    while words and words[0] in _KEYWORDS:
        words = words[1:]
    if words and words[0] in {"export", "declare", "local"}:
        words = words[1:]
    if all(_ASSIGNMENT.fullmatch(word) for word in words):
        for word in words:
            name, _, value = word.partition("=")
            variables[name] = _expanded(value, variables, environ, strict=False)
        return None
    if _script_at(words) is None:
        return None
    expanded = [_expanded(word, variables, environ) for word in words if word not in ("$@", "$*")]
    return of_words(expanded, variables)


def _script_at(words: list[str]) -> int | None:
    for at, word in enumerate(words):
        if _SCRIPT.fullmatch(PurePath(word).name):
            return at
        if PurePath(word).name == "trl" and at + 1 < len(words) and words[at + 1] in _TRL:
            return at + 1
    return None


def _expanded(
    text: str, variables: Mapping[str, str], environ: Mapping[str, str], *, strict: bool = True
) -> str:
    def value(match: re.Match[str]) -> str:
        name = match[1] or match[3] or ""
        if name in variables:
            return variables[name]
        default = match[0] if match[2] is None else match[2]
        return environ.get(name, default) if name else default

    expanded = _VARIABLE.sub(value, text)
    unset = _VARIABLE.search(expanded) if strict else None
    if unset is None:
        return expanded
    if unset[4]:
        raise UsageError(f"`{expanded}` would have to be run: write its value instead")
    name = unset[1] or unset[3]
    raise UsageError(
        f"`${name}` is not set in the script: set it before the command, "
        f"`{name}=… finetune convert …`"
    )


def _simple_commands(text: str) -> Iterator[list[str]]:
    """Lists of words between line ends and operators."""
    for line in _logical_lines(text):
        words: list[str] = []
        for word in line:
            if word in _OPERATORS:
                yield words
                words = []
            else:
                words.append(word)
        yield words


def _logical_lines(text: str) -> Iterator[list[str]]:
    """The words of each line, with those that a backslash or an open quote carries over."""
    pending, continued = "", False
    for line in text.splitlines():
        if (continued or not pending) and line.lstrip().startswith("#"):
            continue  # between the lines of a command an option that somebody has commented out
        pending += line.rstrip("\r")
        continued = re.search(r"(?<!\\)(\\\\)*\\[ \t]*$", pending) is not None
        if continued:
            pending = pending.rstrip(" \t")[:-1] + " "
            continue
        try:
            words = _words(pending)
        except ValueError:  # a quote that is still open
            pending += "\n"
            continue
        yield words
        pending = ""
    if pending.strip():
        try:
            yield _words(pending)
        except ValueError as error:
            raise UsageError(f"the script cannot be read: {str(error).lower()}") from error


def _words(line: str) -> list[str]:
    lexer = shlex.shlex(_REDIRECTION.sub(" ", line), posix=True, punctuation_chars=";&|")
    lexer.whitespace_split = True
    return list(lexer)
