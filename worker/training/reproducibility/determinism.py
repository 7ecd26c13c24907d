"""`training.full_determinism`: kernels that give the same bits each time, and an error if there is
none.

Does the same as transformers' `enable_full_determinism`, except for CUDA_LAUNCH_BLOCKING, which
makes the host wait for each kernel and changes no number. It runs before CUDA starts, because
cuBLAS and NCCL read their variables once. With torch's switch the fused attention, padded or not,
uses its deterministic backward pass, and the compiler does not choose kernels by measuring them.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import Notice

_OPTION: Final = "training.full_determinism"
_VARIABLES: Final = {
    # Each stream has workspaces of its own: products that run at the same time share none.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # For transformers' calls of the package flash-attn.
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}
_MISSING: Final = re.compile(r"(\S+) does not have a deterministic implementation")


def enable(spec: TrainingSpec) -> None:
    """Call this first: before anything is computed on a GPU, and before the processes connect."""
    if not spec.full_determinism:
        return
    os.environ.update(_VARIABLES)
    # Sums in network switches (NVLS) have no fixed order. The operator's own choice is kept.
    os.environ.setdefault("NCCL_ALGO", "Ring")
    torch.use_deterministic_algorithms(mode=True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


@contextmanager
def explained(spec: TrainingSpec) -> Iterator[None]:
    """StageError(invalid_option) that names the operator without a deterministic kernel."""
    try:
        yield
    except RuntimeError as error:
        found = _MISSING.search(str(error)) if spec.full_determinism else None
        if found is None:
            raise
        raise StageError(
            FailureCode.INVALID_OPTION,
            f"`{_OPTION}`: this model needs `{found[1]}`, for which torch has no deterministic "
            "kernel on this device: train without the option, or on a CPU (`resources.gpus: 0`)",
            option=_OPTION,
            operator=found[1],
        ) from error


def notice(spec: JobSpec, device: torch.device) -> Notice | None:
    """The notice about kernels outside of torch, which torch cannot make deterministic."""
    training = spec.training
    if not training.full_determinism or device.type != "cuda":
        return None
    options = {
        "peft.quantization": getattr(spec.peft, "quantization", None) is not None,
        "training.optim": not training.optim.startswith(("adamw_torch", "adafactor", "sgd"))
        and training.optim not in {"adagrad", "rmsprop"},
    }
    unseen = [name for name, used in options.items() if used]
    if not unseen:
        return None
    named = " and ".join(f"`{name}`" for name in unseen)
    return Notice(
        message=f"`{_OPTION}` does not apply to the kernels of bitsandbytes, which {named} uses: "
        "two runs may end with different bits",
        data={"options": unseen},
    )
