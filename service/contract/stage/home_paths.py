"""Paths below the home, as they are stored: relative to it.

A home may be moved, and a copy of it must not use the original's files. So what is stored names a
place below the home by its key, such as `cache/prepared/ab12…`, which could also be the key of an
object store. A stage is given the path of that place in the home that it runs in.
"""

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

from pydantic import AfterValidator, PlainSerializer, SerializationInfo, ValidationInfo

from service.contract.stage import project_cache

_ELSEWHERE: Final = ".elsewhere"
"""A place where no file can be."""


@dataclass(frozen=True)
class Of:
    """The pydantic context in which a `HomePath` is read from its key and written as it."""

    home: Path


def placed(key: Path, home: Path) -> Path:
    """The path of `key` in this home. For anything else, such as a path of another home, a path
    where no file can be."""
    return home / (key if _is_key(key) else Path(_ELSEWHERE) / key.name)


def is_below(path: Path, home: Path) -> bool:
    """Whether it has a key; links are not followed."""
    return path.is_relative_to(home) and _is_key(path.relative_to(home))


def _is_key(path: Path) -> bool:
    return not path.is_absolute() and ".." not in path.parts


def _read(path: Path, info: ValidationInfo) -> Path:
    return placed(path, info.context.home) if isinstance(info.context, Of) else path


def _write(path: Path, info: SerializationInfo) -> str:
    if not isinstance(info.context, Of):
        return str(path)
    home = info.context.home
    if not is_below(path, home):
        raise ValueError(f"{path} is not below {home}")
    return path.relative_to(home).as_posix()


HomePath = Annotated[
    Path, AfterValidator(_read), PlainSerializer(_write, return_type=str, when_used="json")
]
"""A path below the home. In the context `Of(home)` its JSON is its key, otherwise the path."""


def link(place: Path, target: Path, home: Path) -> None:
    """Make `place` a link to `target`: a relative one if both are below `home`, so that it leads to
    the same file of a home that was moved or copied."""
    folder, root = place.parent.resolve(), home.resolve()
    if folder.is_relative_to(root) and target.is_relative_to(root):
        target = Path(os.path.relpath(target, folder))
    place.unlink(missing_ok=True)
    place.symlink_to(target)


def is_there(folder: Path, home: Path, roots: Sequence[Path] | None = None) -> bool:
    """Whether `folder` exists, with what its links lead to in this home or in one of `roots`.

    None for `roots`: what lies outside of the home counts as present, because the operator's
    folders may be visible to workers only.
    """
    if not folder.is_dir():
        return False
    own = [place.resolve() for place in _places(home)]
    return all(_leads(path.resolve(), own, roots) for path in folder.iterdir() if path.is_symlink())


def _places(home: Path) -> Iterator[Path]:
    """The home, and folders of it that the operator may have put on other disks, with a link."""
    yield from (home, *home.iterdir())
    for cache in project_cache.all_in(home / "cache"):
        if cache.is_dir():
            yield from cache.iterdir()


def _leads(target: Path, own: Sequence[Path], roots: Sequence[Path] | None) -> bool:
    if roots is None and not _is_within(target, own):
        return True
    return _is_within(target, [*own, *(roots or ())]) and target.exists()


def _is_within(path: Path, roots: Sequence[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)
