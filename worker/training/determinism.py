"""`training.full_determinism`: kernels that give the same bits each time, and an error where there
is none.

What transformers' `enable_full_determinism` does, but without CUDA_LAUNCH_BLOCKING, which makes
the host wait for each kernel and changes no number, and before CUDA is used: cuBLAS and NCCL look
at their variables once. By torch's switch its fused attention, padded or not, takes its
deterministic backward pass, and its compiler chooses no kernel by how fast it was just now.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import torch

from service.contract.events import Notice
from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec

_OPTION: Final = "training.full_determinism"
_VARIABLES: Final = {
    # Workspaces of a stream's own: products that run at the same time share none.
    "CUBLAS_WORKSPACE_CONFIG": ":4096:8",
    # transformers' calls of the package flash-attn.
    "FLASH_ATTENTION_DETERMINISTIC": "1",
}
_MISSING: Final = re.compile(r"(\S+) does not have a deterministic implementation")


def enable(spec: TrainingSpec) -> None:
    """First of all: before anything is computed on a GPU, and before the processes meet."""
    if not spec.full_determinism:
        return
    os.environ.update(_VARIABLES)
    # Sums in the network's switches (NVLS) have no fixed order. An operator's choice stays.
    os.environ.setdefault("NCCL_ALGO", "Ring")
    torch.use_deterministic_algorithms(True)
    torch.backends.cudnn.deterministic = True
    torch.backends.cudnn.benchmark = False


@contextmanager
def explained(spec: TrainingSpec) -> Iterator[None]:
    """StageError(invalid_option) that names what torch has no deterministic kernel for."""
    try:
        yield
    except RuntimeError as error:
        found = _MISSING.search(str(error)) if spec.full_determinism else None
        if found is None:
            raise
        raise StageError(
            FailureCode.INVALID_OPTION,
            f"`{_OPTION}`: torch has no deterministic kernel for `{found[1]}` on this device, and "
            "this model needs it: train without the option, or on a CPU (`resources.gpus: 0`)",
            option=_OPTION,
            operator=found[1],
        ) from error


def notice(spec: JobSpec, device: torch.device) -> Notice | None:
    """What computes on a GPU outside of torch, which cannot vouch for it."""
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
        message=f"`{_OPTION}` does not reach the kernels of bitsandbytes, which {named} asks for: "
        "whether they give the same bits each time, `finetune doctor` shows",
        data={"options": unseen},
    )
