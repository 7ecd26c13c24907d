"""Secrets that a process receives from its parent through a pipe.

Every process of the same user can read the environment that a process was started with, and every
user its command line. What is read from a pipe is in neither.
"""

import json
import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Final

VARIABLE: Final = "FINETUNE_SECRETS_FD"
"""The descriptor of the pipe. Removed when it is read: a pipe can be read only once."""
SETTINGS: Final = "FINETUNE_"
OF_FILE: Final = "_FILE"
MOST_BYTES: Final = 60_000
"""A little less than a pipe holds before it is read."""

_kept: Final[dict[str, str]] = {}


@contextmanager
def pipe(secrets: Mapping[str, str]) -> Iterator[tuple[dict[str, str], list[int]]]:
    """What a child that is started meanwhile needs to read `secrets`: variables to set, and
    descriptors to pass on. Nothing without secrets."""
    if not secrets:
        yield {}, []
        return
    content = json.dumps(dict(secrets)).encode()
    if len(content) > MOST_BYTES:
        raise ValueError(f"secrets of {len(content)} bytes; at most {MOST_BYTES} can be passed on")
    reader, writer = os.pipe()
    try:
        os.write(writer, content)
        os.close(writer)
        yield {VARIABLE: str(reader)}, [reader]
    finally:
        os.close(reader)


def received() -> Mapping[str, str]:
    """What the parent has passed on: variable → value. Read once, then kept; a forked process may
    receive more."""
    descriptor = os.environ.pop(VARIABLE, None)
    if descriptor is not None:
        with os.fdopen(int(descriptor), "rb") as reader:
            _kept.update(json.load(reader))
    return _kept


def adopt() -> bool:
    """Set what was received, except our own settings, in this process's environment, for libraries
    that look there; returns whether anything was received.

    `/proc/<pid>/environ` shows what the process was started with, not what it sets later.
    """
    others = {n: v for n, v in received().items() if not n.startswith(SETTINGS)}
    os.environ.update(others)
    return bool(received())


def settings() -> dict[str, str]:
    """The settings that were received: name → value."""
    return {
        name.removeprefix(SETTINGS).lower(): value
        for name, value in received().items()
        if name.startswith(SETTINGS)
    }


def of_files(names: Iterable[str]) -> dict[str, str]:
    """Values of settings whose FINETUNE_<NAME>_FILE names a file with the value, as secrets of
    containers and credentials of systemd are given.

    ValueError if it cannot be read, or if the setting itself is given, too.
    """
    found = {}
    for name, variable in ((name, f"{SETTINGS}{name.upper()}") for name in names):
        if file := os.environ.get(variable + OF_FILE):
            if os.environ.get(variable):
                raise ValueError(f"set {variable} or {variable}{OF_FILE}, not both")
            found[name] = _content(Path(file), variable + OF_FILE)
    return found


def _content(file: Path, variable: str) -> str:
    try:
        content = file.expanduser().read_text().strip()
    except (OSError, UnicodeDecodeError) as error:
        reason = getattr(error, "strerror", None) or "not text"
        raise ValueError(f"{variable}: cannot read {file}: {reason}") from None
    if not content:
        raise ValueError(f"{variable}: {file} is empty")
    return content
