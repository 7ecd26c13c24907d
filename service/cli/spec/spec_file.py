"""Reads the file of a spec, with the changes of the command line."""

import json
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from service.cli.spec.overrides import changed, merge_patch
from service.cli.terminal.client import Json
from service.cli.terminal.exit_codes import UsageError
from service.contract.spec import spec_yaml

SpecFile = Annotated[
    Path, typer.Argument(help="YAML or JSON.", exists=True, dir_okay=False, readable=True)
]
_MOST_BYTES: Final = 1024**2
_DEEPEST: Final = 50
"""Levels of a spec's lists and objects; no valid spec has a fifth of them."""


def read_spec(
    path: Path,
    changes: list[str] | None = None,
    sections: str = "`task`, `model` and `dataset`",
) -> Json:
    """The spec with the changes of `--set`. `sections`: what such a spec has. Raises UsageError
    with the line where a file cannot be read."""
    try:
        text = _read(path).decode("utf-8-sig")
        content = json.loads(text) if path.suffix == ".json" else spec_yaml.parse(text)
        too_deep = _is_deeper(content, _DEEPEST)
    except UnicodeDecodeError as error:
        raise UsageError(
            f"{path} cannot be read: byte {error.start + 1} is not UTF-8. Save the file as UTF-8"
        ) from error
    except json.JSONDecodeError as error:
        raise UsageError(
            f"{path} cannot be read: line {error.lineno}, column {error.colno}: not valid JSON: "
            f"{error.msg}"
        ) from error
    except ValueError as error:  # not YAML, or a number with too many digits
        raise UsageError(f"{path} cannot be read: {error}") from error
    except RecursionError:
        too_deep = True
    if too_deep:
        raise UsageError(f"{path} is nested more than {_DEEPEST} levels deep, as no spec is")
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold one mapping with {sections}")
    return changed(content, merge_patch(changes or []))


def _read(path: Path) -> bytes:
    with path.open("rb") as file:
        content = file.read(_MOST_BYTES + 1)
    if len(content) > _MOST_BYTES:
        raise UsageError(
            f"{path} is larger than 1 MiB, as no spec is. Rows belong in files of their own, which "
            "`dataset` names"
        )
    return content


def _is_deeper(value: Any, levels: int) -> bool:
    parts = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return levels < 0 or any(_is_deeper(part, levels - 1) for part in parts)
