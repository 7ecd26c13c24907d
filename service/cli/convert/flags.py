"""A script's arguments by name, as HfArgumentParser reads them."""

import json
import re
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from service.cli.terminal.exit_codes import UsageError

_OPTION = re.compile(r"--?[A-Za-z_][\w-]*(=.*)?", re.S)


def parse(arguments: Sequence[str]) -> dict[str, Any]:
    """`--name value`, `--name=value`, `--name` alone, or one file of JSON with all of them."""
    if len(arguments) == 1 and arguments[0].endswith(".json"):
        return read_json(Path(arguments[0]))
    given: dict[str, list[str]] = {}
    name = None
    for word in arguments:
        if _OPTION.fullmatch(word):
            name, equals, value = word.lstrip("-").partition("=")
            name = name.replace("-", "_")
            given[name] = [value] if equals else []
        elif name is None:
            raise UsageError(
                f"`{word}` is not an option or its value: write options as `--name value`"
            )
        else:
            given[name].append(word)
    return dict(_negated(name, _value(values)) for name, values in given.items())


def read_json(path: Path, text: str | None = None) -> dict[str, Any]:
    """The file's text, unless it is given. Raises UsageError when no object can be read from it."""
    try:
        content = json.loads(path.read_text(encoding="utf-8") if text is None else text)
    except (OSError, ValueError) as error:
        raise UsageError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        raise UsageError(f"{path} is nested too deeply to be options of a script") from None
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold one object of options")
    return content


def is_on(value: Any) -> bool:
    """Whether a switch is on, in any spelling of HfArgumentParser."""
    if isinstance(value, str):
        return value.lower() in ("true", "t", "yes", "y", "1")
    return bool(value)


def _value(values: list[str]) -> Any:
    if not values:
        return True
    return values[0] if len(values) == 1 else values


def _negated(name: str, value: Any) -> tuple[str, Any]:
    """`--no_x` turns off what is on by default; `--no_cuda` has no other name."""
    if name.startswith("no_") and name != "no_cuda" and value is True:
        return name.removeprefix("no_"), False
    return name, value
