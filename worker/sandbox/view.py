"""What a confined process may see and reach."""

import json
import os
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from pathlib import Path
from typing import Self


class Layer(StrEnum):
    """A mechanism of the kernel that confines. Each works without the other."""

    LANDLOCK = "landlock"
    NAMESPACES = "namespaces"


@dataclass(frozen=True)
class View:
    """Made by the supervisor, enforced in the stage's process. Paths that do not exist are left
    out; a folder stands for everything below it."""

    layers: tuple[Layer, ...]
    """Those that this machine has and the operator has not turned off."""
    read: tuple[Path, ...] = ()
    write: tuple[Path, ...] = ()
    listed: tuple[Path, ...] = ()
    """Folders whose names may be listed, because imports look through them."""
    devices: tuple[Path, ...] = ()
    network: bool = False
    """False: nothing but the loopback device, which its own processes share."""
    ports: tuple[int, ...] = ()
    """With `network`: the TCP ports that it may connect to."""
    ranks: bool = False
    """Its processes talk to each other over TCP."""
    shared_memory_bytes: int | None = None
    """The most that its own /dev/shm may hold; None: as much as the machine's."""
    guarded: tuple[Path, ...] = ()
    """Folders in which other stages write. They could put a link in place of a path of the view:
    below these folders a path that leads through a link is left out."""

    def existing(self) -> Self:
        return replace(
            self,
            read=tuple(_unique(self.read)),
            write=tuple(_unique(self.write)),
            listed=tuple(_unique(self.listed)),
            devices=tuple(_unique(self.devices)),
            guarded=tuple(path.absolute() for path in self.guarded),
        )

    def trusted(self, path: Path) -> Path:
        """The part of `path` whose links are followed."""
        around = [folder for folder in self.guarded if path.is_relative_to(folder)]
        return max(around, key=lambda folder: len(folder.parts), default=path)

    def to_json(self) -> str:
        return json.dumps(asdict(self), default=os.fspath)

    @classmethod
    def from_json(cls, text: str | bytes) -> Self:
        given = json.loads(text)
        for name in ("read", "write", "listed", "devices", "guarded"):
            given[name] = tuple(map(Path, given[name]))
        given["layers"] = tuple(map(Layer, given["layers"]))
        return cls(**{**given, "ports": tuple(given["ports"])})


def _unique(paths: Iterable[Path]) -> Iterator[Path]:
    """The paths that exist, without those inside of another one."""
    kept: list[Path] = []
    for path in sorted({path.absolute() for path in paths if os.access(path, os.F_OK)}):
        if not any(path.is_relative_to(other) for other in kept):
            kept.append(path)
            yield path
