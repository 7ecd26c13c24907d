"""Exception or exit status → Failure. Matches classes by name, so that it imports no library."""

import errno
import re
import signal
from collections.abc import Iterable, Iterator
from traceback import walk_tb
from typing import Any, Final

from service.contract.failures import Failure, FailureCode, StageError
from service.system.masking import mask
from worker import unreachable

_FIRST_LINE_LIMIT = 500
_MOST_TEXT: Final = 4_000
_MOST_DETAILS: Final = 64_000
_FULL: Final = frozenset({errno.ENOSPC, errno.EDQUOT})
_NO_FILES: Final = frozenset({errno.EMFILE, errno.ENFILE})
_BUSY_TEXT: Final = re.compile(
    # cudaErrorDevicesUnavailable (46), of a GPU in exclusive mode or while its driver resets it.
    r"device(?:s|\(s\))? (?:is|are|is/are) busy or unavailable|cudaErrorDevicesUnavailable|"
    # torch's own RuntimeError where its processes share tensors by files.
    r"Too many open files"
)
_NO_THREAD_TEXT: Final = "can't start new thread"
_FULL_TEXT = re.compile(r"no space left on device|disk quota exceeded", re.IGNORECASE)
_MEMORY_TEXT = re.compile(
    r"out of memory|DefaultCPUAllocator: (can't allocate|not enough) memory|"
    r"CU[A-Z]+_STATUS_\w*ALLOC\w*_FAILED|cudaErrorMemoryAllocation|Failed to CUDA [cm]alloc|"
    # On a MIG instance torch fails while it words the error (pytorch issue 197312).
    r"NVML_SUCCESS == r INTERNAL ASSERT FAILED.*CUDACachingAllocator",
    re.IGNORECASE,
)
# torch's text for an NCCL error; NCCL's own message follows, up to the end of the line.
_NCCL_LAST_ERROR = re.compile(r"Last error:\s*(.+)")
_SHARED_MEMORY_TEXT = re.compile(r"shared memory segment|/dev/shm", re.IGNORECASE)
_SAME_GPU_TEXT = re.compile(r"Duplicate GPU detected", re.IGNORECASE)
_DEVICE_TEXT = re.compile(
    r"CUDA error|CUDA driver|CUBLAS_STATUS|CUDNN_STATUS|cuDNN error|NCCL error|HIP error|"
    r"device-side assert"
)
_TRANSPORT_MODULES: Final = frozenset(
    {"httpx", "httpx2", "httpcore", "httpcore2", "requests", "urllib3", "aiohttp"}
)
_STATUS_CODES: Final = {
    401: FailureCode.HUB_UNAUTHORIZED,
    403: FailureCode.HUB_FORBIDDEN,
    408: FailureCode.HUB_UNAVAILABLE,
    409: FailureCode.HUB_CONFLICT,
    412: FailureCode.HUB_CONFLICT,
    429: FailureCode.HUB_RATE_LIMITED,
}
# Native faults that end a process: nearly always a driver, a device or its memory.
_DEVICE_SIGNALS: Final = frozenset({signal.SIGSEGV, signal.SIGBUS, signal.SIGABRT})
_FROM_OUTSIDE: Final = frozenset(
    {signal.SIGKILL, signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGUSR1}
)


def small(failure: Failure) -> Failure:
    """`failure` with secrets masked, cut to fit the pipe and a response."""
    details = failure.details if len(repr(failure.details)) <= _MOST_DETAILS else {}
    texts = {"message": mask(failure.message), "action": failure.action}
    cut = {name: text[:_MOST_TEXT] for name, text in texts.items()}
    return failure.model_copy(update={**cut, "details": details})


def from_exception(error: BaseException) -> Failure:
    """The failure for `error`, or for the error it was raised from.

    The message holds the exception's type and first line, with secrets masked; of a network error
    the host and the reason.
    """
    for link in causes(error):
        for classify in (nccl_cause, _limit, _disk, _lack, _memory, _hub, _network, _device):
            code = classify(link)
            if code is FailureCode.NETWORK:
                return Failure.from_code(code, mask(unreachable.sentence(error, describe(link))))
            if code is not None:
                return Failure.from_code(code, f"{_LEADS[code]}: {describe(link)}")
    return Failure.from_code(FailureCode.INTERNAL, f"The stage ended with {describe(error)}")


def invalid_option(option: str, why: str, **details: Any) -> StageError:
    """`why` completes the sentence that begins with the option's name."""
    return StageError(FailureCode.INVALID_OPTION, f"`{option}` {why}", option=option, **details)


def unreported_metric(given: str, reported: Iterable[str]) -> StageError:
    """The best model is chosen by the metric `given`, which is not among those `reported`."""
    names = sorted(name.removeprefix("eval_") for name in reported)
    return invalid_option(
        "training.metric_for_best_model",
        f"is `{given}`, but the evaluation reports only: {', '.join(names)}",
        given=given,
        known=names,
    )


def from_exit(returncode: int, *, oom_killed: bool = False) -> Failure:
    """The failure of a stage that ended without an event; `returncode` as subprocess reports it.

    `oom_killed`: the kernel killed a process because memory ran out while the stage ran.
    """
    number = -returncode if returncode < 0 else returncode - 128
    if number not in {item.value for item in signal.Signals}:
        message = f"The stage exited with status {returncode} and reported no reason"
        return Failure.from_code(FailureCode.INTERNAL, message, exit_status=returncode)
    received = signal.Signals(number)
    if received is signal.SIGKILL and oom_killed:
        code = FailureCode.OUT_OF_MEMORY
        message = "The stage was killed (SIGKILL) when the host ran out of memory"
    elif received is signal.SIGXFSZ:
        code = FailureCode.DISK_LIMIT
        message = "The stage wrote a file larger than FINETUNE_STAGE_FILE_BYTES allows"
    elif received in _DEVICE_SIGNALS:
        code = FailureCode.DEVICE_ERROR
        message = f"The stage crashed in native code ({received.name})"
    elif received in _FROM_OUTSIDE:
        code = FailureCode.WORKER_LOST
        message = f"The stage was stopped from outside ({received.name})"
    else:
        code = FailureCode.INTERNAL
        message = f"The stage was ended by {received.name}"
    return Failure.from_code(code, message, signal=received.name)


def describe(error: BaseException) -> str:
    """Type and first line of an exception, or NCCL's message in it; masked, and cut to fit a
    response."""
    lines = mask(nccl_last_error(str(error))).strip().splitlines()
    first = lines[0][:_FIRST_LINE_LIMIT] if lines else ""
    return f"{type(error).__name__}: {first}" if first else type(error).__name__


_LEADS: Final = {
    FailureCode.DISK_FULL: "There is no space left on the worker's disk",
    FailureCode.DISK_LIMIT: "The stage wrote a file larger than FINETUNE_STAGE_FILE_BYTES allows",
    FailureCode.PROCESS_LIMIT: "The stage could not start another process or thread",
    FailureCode.OUT_OF_MEMORY: "The worker ran out of memory",
    FailureCode.DEVICE_ERROR: "The device reported an error",
    FailureCode.SHARED_MEMORY_FULL: "The processes of the training had too little shared memory",
    FailureCode.INSUFFICIENT_RESOURCES: "The worker's machine lacks something that others use now",
    FailureCode.GPU_USED_TWICE: "Two processes of the training were given the same GPU",
    FailureCode.HUB_UNAUTHORIZED: "The Hub did not accept the token (401)",
    FailureCode.HUB_FORBIDDEN: "The Hub refused access (403)",
    FailureCode.HUB_CONFLICT: "The Hub reported a conflict with another change",
    FailureCode.HUB_RATE_LIMITED: "The Hub asked us to slow down (429)",
    FailureCode.HUB_UNAVAILABLE: "The Hub could not serve the call",
    FailureCode.HUB_REJECTED: "The Hub rejected the call",
}


def causes(error: BaseException) -> Iterator[BaseException]:
    """`error` and the errors it was raised from: libraries wrap the error that matters."""
    seen: set[int] = set()
    link: BaseException | None = error
    while link is not None and id(link) not in seen:
        seen.add(id(link))
        yield link
        link = link.__cause__


def _names(error: BaseException) -> frozenset[str]:
    return frozenset(kind.__name__ for kind in type(error).__mro__)


def _limit(error: BaseException) -> FailureCode | None:
    if getattr(error, "errno", None) == errno.EFBIG:
        return FailureCode.DISK_LIMIT
    if isinstance(error, BlockingIOError) or _NO_THREAD_TEXT in str(error):
        return FailureCode.PROCESS_LIMIT
    return None


def _disk(error: BaseException) -> FailureCode | None:
    full = getattr(error, "errno", None) in _FULL or _FULL_TEXT.search(str(error))
    return FailureCode.DISK_FULL if full else None


def _lack(error: BaseException) -> FailureCode | None:
    """Open files, and a GPU that another process has for itself."""
    no_files = getattr(error, "errno", None) in _NO_FILES
    busy = isinstance(error, RuntimeError) and _BUSY_TEXT.search(str(error))
    return FailureCode.INSUFFICIENT_RESOURCES if no_files or busy else None


def nccl_cause(error: BaseException) -> FailureCode | None:
    """The cause of an NCCL error if the user or the operator can remove it, else None."""
    text = str(error)
    if not isinstance(error, RuntimeError) or "nccl" not in text.lower():
        return None
    message = nccl_last_error(text)
    if _SHARED_MEMORY_TEXT.search(message):
        return FailureCode.SHARED_MEMORY_FULL
    if _SAME_GPU_TEXT.search(message):
        return FailureCode.GPU_USED_TWICE
    return FailureCode.OUT_OF_MEMORY if _MEMORY_TEXT.search(message) else None


def nccl_last_error(text: str) -> str:
    """NCCL's own message in the text of torch's error."""
    last = _NCCL_LAST_ERROR.search(text)
    return last[1] if last else text


def is_out_of_memory(error: BaseException) -> bool:
    """Whether the machine or a GPU ran out of memory, whichever library reports it."""
    # ArrowMemoryError is a MemoryError; torch's own class is a RuntimeError with that name.
    named = _names(error) & {"MemoryError", "OutOfMemoryError"}
    matched = isinstance(error, RuntimeError) and _MEMORY_TEXT.search(str(error))
    no_memory = getattr(error, "errno", None) == errno.ENOMEM
    return bool(named or matched or no_memory)


def is_panic(error: BaseException) -> bool:
    """Whether a library that is written in Rust, such as tokenizers, gave up in the middle."""
    return "PanicException" in _names(error)


def _memory(error: BaseException) -> FailureCode | None:
    return FailureCode.OUT_OF_MEMORY if is_out_of_memory(error) else None


def _hub(error: BaseException) -> FailureCode | None:
    names = _names(error)
    if "GatedRepoError" in names or "DisabledRepoError" in names:
        return FailureCode.HUB_FORBIDDEN
    if "HfHubHTTPError" in names:
        return _hub_status(getattr(error, "response", None))
    if "JSONDecodeError" in names and _was_in_response(error):
        return FailureCode.HUB_UNAVAILABLE
    if "LocalTokenNotFoundError" in names:
        return FailureCode.HUB_UNAUTHORIZED
    rejected = {"HFValidationError", "EntryNotFoundError", "RevisionNotFoundError"}
    local = "LocalEntryNotFoundError" in names  # the network was needed and not there
    return FailureCode.HUB_REJECTED if names & rejected and not local else None


def _was_in_response(error: BaseException) -> bool:
    """Whether the unreadable JSON was a response from the network, not a file of the user's."""
    frames = (frame for frame, _ in walk_tb(error.__traceback__))
    return any(
        frame.f_globals.get("__name__", "").partition(".")[0] in _TRANSPORT_MODULES
        for frame in frames
    )


def _hub_status(response: Any) -> FailureCode:
    status = getattr(response, "status_code", None)
    if status is None or status >= 500:
        return FailureCode.HUB_UNAVAILABLE
    return _STATUS_CODES.get(status, FailureCode.HUB_REJECTED)


def _network(error: BaseException) -> FailureCode | None:
    names = _names(error)
    named = names & {"LocalEntryNotFoundError", "OfflineModeIsEnabled", "gaierror"}
    builtin = isinstance(error, ConnectionError | TimeoutError) and not isinstance(
        error, BrokenPipeError
    )
    modules = {kind.__module__.partition(".")[0] for kind in type(error).__mro__}
    transport = modules & _TRANSPORT_MODULES and names & {
        "TransportError",
        "NetworkError",
        "TimeoutException",
        "ConnectionError",
        "Timeout",
        "HTTPError",
        "ClientError",
    }
    return FailureCode.NETWORK if named or builtin or transport else None


def _device(error: BaseException) -> FailureCode | None:
    matched = isinstance(error, RuntimeError) and _DEVICE_TEXT.search(str(error))
    return FailureCode.DEVICE_ERROR if matched or "AcceleratorError" in _names(error) else None
