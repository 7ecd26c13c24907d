"""Reading untrusted JSON: a bounded size, an object, and an error for the user."""

import json
import os
import stat
from pathlib import Path
from typing import Any, Final

from service.contract.failures import FailureCode, StageError

_MIB: Final = 1024**2


def broken(name: str, file: str, problem: str, **details: Any) -> StageError:
    """`problem` completes the sentence that begins with the file's name."""
    message = f"{file} of the model {name!r} {problem}"
    return StageError(FailureCode.INVALID_MODEL, message, file=file, **details)


def read_bytes(folder: Path, file: str, limit: int, name: str) -> bytes:
    """StageError(invalid_model) for a file of more than `limit` bytes, and for one that is not a
    regular file. A link in place of the file is not followed."""
    try:
        descriptor = os.open(folder / file, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise broken(name, file, "is missing") from None
    except OSError as error:
        raise broken(name, file, f"cannot be read: {error.strerror}") from error
    with os.fdopen(descriptor, "rb") as stream:
        status = os.fstat(stream.fileno())
        if not stat.S_ISREG(status.st_mode):
            raise broken(name, file, "is not a regular file")
        content = stream.read(limit + 1)
    if len(content) > limit:
        size = max(status.st_size, len(content))
        problem = f"has {size:,} bytes, and at most {limit // _MIB} MiB are read"
        raise broken(name, file, problem, bytes=size, limit=limit)
    return content


def parse(content: bytes, file: str, name: str) -> dict[str, Any]:
    """The object in `content`. StageError(invalid_model) for anything else."""
    try:
        value = json.loads(content.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise broken(name, file, f"is not UTF-8 (byte {error.start + 1})") from error
    except json.JSONDecodeError as error:
        problem = f"is not valid JSON: {error.msg} (line {error.lineno}, column {error.colno})"
        raise broken(name, file, problem) from error
    except RecursionError:
        raise broken(name, file, "is not usable JSON: it is nested too deeply") from None
    except ValueError as error:  # a number of more than 4,300 digits
        raise broken(name, file, "is not usable JSON: a number has too many digits") from error
    if not isinstance(value, dict):
        raise broken(name, file, f"must hold a JSON object, not {type(value).__name__}")
    return value
