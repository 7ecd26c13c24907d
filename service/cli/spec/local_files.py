"""The files on this machine that a spec names: finding, checking and uploading them."""

import codecs
import hashlib
import os
import stat
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from pathlib import Path
from typing import Annotated, Any, Final

import typer

from service.cli.terminal.client import Json
from service.contract.spec import splits
from service.system import escaping

_LOCAL: Final = ("./", "../")
"""How a spec names a file to upload first, relative to itself; an id of an upload never does."""
_BLOCK: Final = 1024 * 1024
_PARQUET: Final = b"PAR1"
_UTF16: Final = (codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)


AllowOutside = Annotated[
    bool,
    typer.Option(
        "--allow-outside",
        help="Also read files outside the spec's folder, above it or behind a link.",
    ),
]


@dataclass(frozen=True)
class LocalFile:
    """One mention of a file in a spec."""

    field: str
    """As the spec has it: `dataset.train`, `dataset.train.1`, `dataset.validation.easy`."""
    name: str
    """As the spec has it: `./train.jsonl`."""
    path: Path


@dataclass(frozen=True)
class Content:
    """What was read of a file."""

    size: int
    sha256: str


class UnusableFileError(ValueError):
    """No job could read the file; the message says why and what to do."""


def is_local(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(_LOCAL)


def is_file(path: Path) -> bool:
    """Also for what cannot be the name of a file: a row that was pasted, for example."""
    try:
        return path.is_file()
    except OSError:
        return False


def named_in(spec: Json, folder: Path) -> list[LocalFile]:
    """Every mention of a local file, in the order of the spec; `folder` is that of the spec."""
    dataset = _uploads(spec)
    return [
        LocalFile(field, value, folder / value)
        for split in splits.ALL
        for field, value in _walk(dataset.get(split), f"dataset.{split}")
    ]


def require_inside(path: Path, folder: Path) -> None:
    """UnusableFileError for a file outside the folder of the spec: who wrote the spec would choose
    what a user uploads."""
    if "\x00" in str(path):  # `read` says so
        return
    real = Path(os.path.realpath(path))
    if not real.is_relative_to(os.path.realpath(folder)):
        raise UnusableFileError(
            f"{path} is {real}, outside the spec's folder. If it may be uploaded, add "
            "--allow-outside"
        )


def _walk(value: Any, field: str) -> Iterator[tuple[str, str]]:
    if is_local(value):
        yield field, value
    elif isinstance(value, list):
        for number, item in enumerate(value):
            yield from _walk(item, f"{field}.{number}")
    elif isinstance(value, dict):  # several validation sets by name
        for name, item in value.items():
            yield from _walk(item, f"{field}.{name}")


def replaced(spec: Json, ids: Mapping[str, str]) -> Json:
    """The spec with an id in place of each local file's name."""
    dataset = _uploads(spec)
    if not dataset:
        return spec
    new = {split: _with_ids(dataset[split], ids) for split in splits.ALL if split in dataset}
    return {**spec, "dataset": {**dataset, **new}}


def _with_ids(value: Any, ids: Mapping[str, str]) -> Any:
    if isinstance(value, list):
        return [_with_ids(item, ids) for item in value]
    if isinstance(value, dict):
        return {name: _with_ids(item, ids) for name, item in value.items()}
    return ids.get(value, value) if is_local(value) else value


def _uploads(spec: Json) -> Json:
    dataset = spec.get("dataset")
    is_upload = isinstance(dataset, dict) and dataset.get("source") == "upload"
    return dataset if is_upload and isinstance(dataset, dict) else {}


def expects_text(spec: Json) -> bool:
    """Whether a byte that is not UTF-8 ends the job: with `skip` only its row is left out."""
    dataset = _uploads(spec)
    return dataset.get("format") != "parquet" and dataset.get("on_bad_row") != "skip"


def read(path: Path, *, must_be_text: bool, progress: Callable[[int], None]) -> Content:
    """Read a file once, to its end. Raises UnusableFileError."""
    if "\x00" in str(path):
        raise UnusableFileError(f"{str(path)!r} cannot be the name of a file")
    try:
        mode = path.stat().st_mode
        if not stat.S_ISREG(mode):
            kind = "a folder" if stat.S_ISDIR(mode) else "a pipe or device"
            raise UnusableFileError(f"{path} is {kind}, not a file")
        return _read(path, must_be_text=must_be_text, progress=progress)
    except FileNotFoundError:
        raise UnusableFileError(f"{path} does not exist{_nearby(path)}") from None
    except OSError as error:
        raise UnusableFileError(f"{path} cannot be read: {error.strerror}") from error


def _nearby(path: Path) -> str:
    try:
        names = [entry.name for entry in path.parent.iterdir() if entry.is_file()]
    except OSError:
        return ""
    near = get_close_matches(path.name, names, 1)
    return f"; did you mean {near[0]}?" if near else ""


def _read(path: Path, *, must_be_text: bool, progress: Callable[[int], None]) -> Content:
    digest, size, text = hashlib.sha256(), 0, _TextCheck(path)
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            if size == 0 and block.startswith(_PARQUET):
                must_be_text = False
            if must_be_text:
                text.feed(block)
            digest.update(block)
            size += len(block)
            progress(len(block))
    if size == 0:
        raise UnusableFileError(f"{path} is empty")
    if must_be_text:
        text.feed(b"", final=True)
    return Content(size, digest.hexdigest())


class _TextCheck:
    """Finds the first line of a file that is not UTF-8."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._decoder = codecs.getincrementaldecoder("utf-8")()
        self._lines = 1

    def feed(self, block: bytes, *, final: bool = False) -> None:
        if self._lines == 1 and block.startswith(_UTF16):
            raise UnusableFileError(f"{self._path} is in UTF-16: {_convert('UTF-16', self._path)}")
        try:
            self._lines += self._decoder.decode(block, final).count("\n")
        except UnicodeDecodeError as error:
            line = self._lines + bytes(error.object[: error.start]).count(b"\n")
            byte = error.object[error.start]
            raise UnusableFileError(
                f"{self._path}, line {line}: byte 0x{byte:02x} is not UTF-8. If the file is in "
                f"another encoding, convert it: {_convert('LATIN1', self._path)}"
            ) from None


def _convert(encoding: str, path: Path) -> str:
    source, target = map(escaping.shell_word, (path.name, f"utf8-{path.name}"))
    return f"`iconv -f {encoding} -t UTF-8 {source} > {target}`"
