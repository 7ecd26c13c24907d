"""Which paths of the worker's file system a spec may name."""

from collections.abc import Sequence
from pathlib import Path
from typing import Final

_DEEPEST: Final = 30
"""Folders. To resolve 2,000 of them took 0.1 s, and a body may hold 256 such paths."""


class PathNotAllowedError(ValueError):
    """The path is outside the operator's roots; its message is for the user."""


def resolve_under_roots(value: str, roots: Sequence[Path], setting: str) -> Path:
    """`value` with all symlinks resolved, if that lies under one of `roots` (absolute, resolved).

    Raises PathNotAllowedError for a relative path, `..`, NUL, a symlink that leads out, or when
    the operator allows no roots; `setting` names the operator's variable in the message. The
    path need not exist.
    """
    if "\x00" in value:
        raise PathNotAllowedError("a path must not contain a NUL character")
    path = Path(value)
    if not path.is_absolute() or ".." in path.parts:
        raise PathNotAllowedError(f"{value!r} must be an absolute path without `..`")
    if len(path.parts) > _DEEPEST:
        raise PathNotAllowedError(f"a path may have at most {_DEEPEST} folders")
    if not roots:
        raise PathNotAllowedError(f"paths are not allowed here: the operator has not set {setting}")
    try:
        resolved = path.resolve()
    except (OSError, RuntimeError) as error:
        raise PathNotAllowedError(f"{value!r} cannot be resolved") from error
    if not any(resolved.is_relative_to(root) for root in roots):
        # Reveals neither what exists there nor where the roots are.
        raise PathNotAllowedError(f"{value!r} is not under a folder that {setting} allows")
    return resolved
