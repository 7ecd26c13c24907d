"""Files of a job onto this machine: resumed, checked, and in place only when they are whole."""

import hashlib
import os
import unicodedata
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, BinaryIO, Final
from urllib.parse import quote

import httpx

from finetune_client import errors
from finetune_client.http import calls, retries
from finetune_client.http.calls import Call
from finetune_client.http.flows import (
    Flow,
    Json,
    Policy,
    Read,
    Sleep,
    Work,
    answered,
    json,
    unreachable,
)

try:
    import fcntl
except ImportError:  # Windows, where an open file could not be renamed either
    fcntl = None  # type: ignore[assignment]

_OTHER_SECONDS: Final = 0.2
"""Between two checks whether another download of the same file has ended."""
RESERVED: Final = frozenset(
    ["con", "prn", "aux", "nul"] + [f"{name}{n}" for name in ("com", "lpt") for n in range(1, 10)]
)
"""Devices on Windows, whose disks may be mounted here."""


def artifacts(policy: Policy, job_id: str, folder: Path) -> Flow[list[Path]]:
    """All artifacts of a job below `folder`; their paths. A file that is there already with the
    right sha256 is kept."""
    call = calls.get(calls.job(job_id, "artifacts"), {"limit": calls.PAGE})
    found = []
    while True:
        page = yield from json(policy, call)
        found += page["data"]
        if not page["has_more"]:
            break
        params = {"limit": calls.PAGE, "after": found[-1]["name"]}
        call = replace(call, params=params)
    return (yield from _missing(policy, f"{calls.job(job_id, 'artifacts')}/", found, folder))


def checkpoint(policy: Policy, job_id: str, step: int, folder: Path) -> Flow[list[Path]]:
    """The files of one checkpoint, as `artifacts`."""
    path = calls.job(job_id, "checkpoints", step)
    found = yield from json(policy, calls.get(path))
    if not found["files"]:  # it was removed: the service says when and why
        yield from answered(policy, calls.get(f"{path}/archive"), streams=True)
    return (yield from _missing(policy, f"{path}/files/", found["files"], folder))


def _missing(policy: Policy, path: str, files: list[Json], folder: Path) -> Flow[list[Path]]:
    """The files that are not there with the right sha256; the paths of all. Each is at `path` with
    its name."""
    targets = paths([each["name"] for each in files], folder)
    for each in files:
        target = targets[each["name"]]
        if not (yield Work(partial(is_same, target, each["sha256"]))):
            yield from file(policy, path + quote(each["name"]), target, each["sha256"])
    return list(targets.values())


def file(
    policy: Policy,
    path: str,
    target: Path,
    sha256: str | None = None,
    *,
    keeps_partial: bool = True,
) -> Flow[Path]:
    """What `path` answers, as `target`. An interrupted download continues where it stopped; with
    `keeps_partial` also in a later call, if the sha256 is known. Raises DamagedDownloadError."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{(sha256 or 'new')[:12]}.part")
    with (yield from _alone(part)):
        # The download that held it until now may have completed it.
        if sha256 is None or not (yield Work(partial(is_same, target, sha256))):
            yield from _fetch(policy, path, part, sha256, keeps_partial=keeps_partial)
            part.replace(target)
        else:
            part.unlink(missing_ok=True)
    return target


def _fetch(
    policy: Policy, path: str, part: Path, sha256: str | None, *, keeps_partial: bool
) -> Flow[None]:
    """The whole body in `part`, with the right sha256."""
    try:
        yield from _received(policy, path, part, sha256)
    except BaseException:
        if not keeps_partial or not _size(part):
            part.unlink(missing_ok=True)
        raise
    if sha256 is not None and not (yield Work(partial(is_same, part, sha256))):
        part.unlink()
        raise errors.DamagedDownloadError(
            f"{path} arrived with another sha256 than it was announced with: the job has changed "
            "it meanwhile, or it is damaged on the server. Try again."
        )


def _alone(part: Path) -> Flow[AbstractContextManager[Any]]:
    """Entered once no one else writes the partial file: threads and processes of one machine may
    download the same file, as the ranks of a training do."""
    if fcntl is None:
        return nullcontext()
    while True:
        held = part.open("ab")
        if _is_locked(held) and _is_at(held, part):
            return held
        held.close()
        yield Sleep(_OTHER_SECONDS)


def _is_locked(file: BinaryIO) -> bool:
    """Closing the file unlocks it. Also true on a disk that cannot lock files."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_at(file: BinaryIO, path: Path) -> bool:
    """Whether it is still there under this name: another download may have renamed it."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def _received(policy: Policy, path: str, part: Path, sha256: str | None) -> Flow[None]:
    """The whole body in `part`, over several connections if need be. Those that bring a large file
    further do not count as retries."""
    attempt = 0
    done = _size(part)
    while True:
        try:
            yield from _receive(policy, path, part, sha256)
            return
        except httpx.RequestError as error:
            if sha256 and _size(part) > done:
                attempt = 0
            if attempt >= policy.max_retries:
                raise unreachable(policy, error) from error
        done = _size(part)
        yield Sleep(retries.seconds(attempt))
        attempt += 1


def _size(path: Path) -> int:
    return path.stat().st_size if path.exists() else 0


def _receive(policy: Policy, path: str, part: Path, sha256: str | None) -> Flow[None]:
    """Append to `part` what is missing; from the start where the service does not continue."""
    done = _size(part) if sha256 else 0
    headers = {"Accept-Encoding": "identity"}
    if done:
        headers |= {"Range": f"bytes={done}-", "If-Range": f'"{sha256}"'}
    call = Call("GET", path, headers=headers, is_repeatable=True)
    try:
        answer = yield from answered(policy, call, streams=True)
    except errors.APIError as error:
        if error.status == httpx.codes.REQUESTED_RANGE_NOT_SATISFIABLE and done:
            return  # all of it is there
        raise
    is_rest = answer.status_code == httpx.codes.PARTIAL_CONTENT
    with part.open("ab" if is_rest else "wb") as target:
        while block := (yield Read(answer)):
            target.write(block)
        target.flush()
        yield Work(partial(os.fsync, target.fileno()))


def is_same(path: Path, sha256: str) -> bool:
    """Reads the whole file, which takes seconds for a large one."""
    if not path.is_file():
        return False
    with path.open("rb") as opened:
        return hashlib.file_digest(opened, "sha256").hexdigest() == sha256


def paths(names: Iterable[str], folder: Path) -> Mapping[str, Path]:
    """Where each of the service's names lies under `folder`.

    Raises UnsafeNameError for a name outside of it, one that no file system should be given, and
    two names that a file system may take for one. The service may be malicious.
    """
    found: dict[str, Path] = {}
    folded: dict[str, str] = {}
    for name in names:
        path = Path(name)
        if path.is_absolute() or ".." in path.parts or not path.parts:
            raise errors.UnsafeNameError(f"the service names {name!r}, which is outside {folder}")
        if not all(
            part.isprintable() and part.partition(".")[0].rstrip().lower() not in RESERVED
            for part in path.parts
        ):
            raise errors.UnsafeNameError(f"the service names {name!r}, which is not a file's name")
        other = folded.setdefault(unicodedata.normalize("NFC", path.as_posix()).casefold(), name)
        if other != name:
            raise errors.UnsafeNameError(
                f"the service names two files {other!r} and {name!r} alike"
            )
        found[name] = folder / path
    return found
