"""Checking that torch can compute on the GPUs that the worker gave to this attempt."""

import re
import warnings
from collections.abc import Sequence
from typing import Final

import torch

from service.contract.failures import FailureCode, StageError
from worker import failures

_RELEASE: Final = torch.__version__.partition("+")[0]
_DOCS: Final = "docs/gpu.md lists the drivers and GPUs that each build supports"
_REMEDIES: Final = (
    (
        r"not compiled with CUDA",
        f"Ask the operator to install a CUDA build of torch {_RELEASE} on this worker ({_DOCS}), "
        "or set `resources.gpus: 0` to train on the CPU.",
    ),
    (
        r"driver\b.*\btoo old|driver version is insufficient",
        "Ask the operator to update this worker's NVIDIA driver, or to install a torch build for "
        f"an older CUDA version ({_DOCS}).",
    ),
    (
        r"no kernel image|does not include kernels|is not compatible with",
        f"Ask the operator to install a torch build with kernels for this GPU ({_DOCS}).",
    ),
)
_OTHERWISE: Final = (
    "Ask the operator to run `finetune doctor` on this worker: it checks the driver, torch and "
    "each GPU. Meanwhile the job is retried."
)


def require(given: Sequence[str], rank: int) -> None:
    """Start CUDA and compute something on this rank's GPU.

    `given`: UUIDs of the attempt's GPUs; nothing is checked if there are none.
    StageError(device_error) with torch's reason if it cannot use them: without this check such a
    training would run on the CPU.
    """
    if not given:
        return
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        try:
            torch.cuda.init()
            found = torch.cuda.device_count()
            if found >= len(given):
                (torch.ones(1, device=f"cuda:{rank}") + 1).item()
        except (AssertionError, RuntimeError, torch.cuda.DeferredCudaCallError) as error:
            code = failures.from_exception(error).code
            if code in (FailureCode.OUT_OF_MEMORY, FailureCode.INSUFFICIENT_RESOURCES):
                raise
            raise _unusable(given, str(error), caught) from error
        if found < len(given):
            raise _unusable(given, f"CUDA shows {found} of {len(given)} GPUs", caught)
    for one in caught:
        warnings.warn_explicit(one.message, one.category, one.filename, one.lineno)


def _unusable(
    given: Sequence[str], reason: str, caught: list[warnings.WarningMessage]
) -> StageError:
    reasons = [reason, *(str(warning.message) for warning in caught)]
    why = "; ".join(dict.fromkeys(text.strip() for text in reasons))
    build = f"built for CUDA {torch.version.cuda}" if torch.version.cuda else "built for the CPU"
    error = StageError(
        FailureCode.DEVICE_ERROR,
        f"This worker gave the job {', '.join(given)}, but torch {torch.__version__}, {build}, "
        f"cannot use {'it' if len(given) == 1 else 'them'}: {why}",
        gpus=list(given),
        torch=torch.__version__,
    )
    remedy = next((text for pattern, text in _REMEDIES if re.search(pattern, why)), _OTHERWISE)
    error.failure = error.failure.model_copy(update={"action": remedy})
    return error
