"""Reads the file of a spec."""

import json
from pathlib import Path

from service.cli.client import Json
from service.cli.exit_codes import UsageError
from service.contract import spec_yaml


def read_spec(path: Path) -> Json:
    """Raises UsageError with the line where a file cannot be read."""
    try:
        text = path.read_text(encoding="utf-8-sig")
        content = json.loads(text) if path.suffix == ".json" else spec_yaml.parse(text)
    except ValueError as error:  # not UTF-8, not JSON, not YAML
        raise UsageError(f"{path} cannot be read: {error}") from error
    if not isinstance(content, dict):
        raise UsageError(f"{path} must hold one mapping with `task`, `model` and `dataset`")
    return content
