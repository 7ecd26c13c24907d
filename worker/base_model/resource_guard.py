"""Running a library on a user's files with limits on memory and time; its error becomes a failure.

Configurations and models without weights are small and quick to build, whatever their size. One
that needs more was made to exhaust the machine.
"""

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Final, NoReturn, TypeVar

from service.contract.failures import FailureCode, StageError
from service.system.masking import mask
from worker import failures
from worker.processes.memory_limit import added_memory
from worker.time_budget import time_budget

_MEMORY: Final = 3 * 1024**3
_SECONDS: Final = 30.0
_LONGEST: Final = 400  # characters of a library's message

T = TypeVar("T")


class _TooSlow(BaseException):
    """Not an Exception: libraries catch those and continue."""


def build(
    what: str,
    make: Callable[[], T],
    code: FailureCode = FailureCode.INVALID_MODEL,
    *,
    folder: Path | None = None,
    is_native: bool = False,
) -> T:
    """The result of `make`, which reads files of a user's model; `what` begins the sentence if it
    cannot be made. StageError(`code`, model_too_large).

    `folder`: our copy of the files, whose path means nothing to the user.
    `is_native`: the library ends the process when memory is short, so its memory is not limited.
    """
    try:
        with time_budget(_SECONDS, _TooSlow), nullcontext() if is_native else added_memory(_MEMORY):
            return make()
    except (StageError, SystemExit, KeyboardInterrupt):
        raise
    except _TooSlow:
        problem = f"{what} takes more than {_SECONDS:.0f} s of computing"
        raise StageError(FailureCode.MODEL_TOO_LARGE, problem) from None
    except BaseException as error:
        if not isinstance(error, Exception) and not failures.is_panic(error):
            raise  # the supervisor's request to stop
        _refuse(what, error, code, folder)


def _refuse(what: str, error: BaseException, code: FailureCode, folder: Path | None) -> NoReturn:
    if failures.is_out_of_memory(error):
        problem = f"{what} takes more than {_MEMORY // 1024**3} GiB of memory without any weights"
        raise StageError(FailureCode.MODEL_TOO_LARGE, problem) from error
    if failures.from_exception(error).code is not FailureCode.INTERNAL:
        raise error  # a full disk, for example: the model is not to blame
    raise StageError(code, f"{what} is not possible: {_described(error, folder)}") from error


def _described(error: BaseException, folder: Path | None) -> str:
    text = " ".join(mask(str(error)).split())
    if folder is not None:
        text = text.replace(str(folder), "the model's folder")
    return f"{type(error).__name__}: {text[:_LONGEST]}"
