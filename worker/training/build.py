"""Device, model, optimizer, schedule and loaders from a job's options."""

import math
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator
from torch.utils.data import DataLoader
from transformers import Adafactor, get_scheduler
from transformers.trainer_pt_utils import get_parameter_names

from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec
from worker.training.objective import Batch, Collate, Features
from worker.training.plan import Plan

# Linux, control groups v2: "<quota> <period>" or "max <period>", in microseconds.
_CPU_LIMIT: Final = Path("/sys/fs/cgroup/cpu.max")
# The names that transformers.Trainer leaves without weight decay, beside LayerNorm modules.
_NO_DECAY: Final = [
    r"bias",
    r"layernorm",
    r"rmsnorm",
    r"(?:^|\.)norm(?:$|\.)",
    r"_norm(?:$|\.)",
]


def accelerator(spec: JobSpec) -> Accelerator:
    """Accelerate on the job's device and precision. StageError(invalid_option) if it cannot be."""
    training = spec.training
    on_cpu = training.use_cpu or spec.resources.gpus == 0
    has_gpu = torch.cuda.is_available() and not on_cpu
    if spec.resources.gpus and not has_gpu:
        raise _invalid("resources.gpus", "asks for a GPU, but this worker has none")
    if training.fp16 and not has_gpu:
        raise _invalid("training.fp16", "needs a GPU; use `bf16` on a CPU")
    if training.fp16 and spec.model.dtype == "float16":
        raise _invalid("training.fp16", "needs float32 weights; set `model.dtype` to `float32`")
    if training.bf16 and has_gpu and not torch.cuda.is_bf16_supported():
        raise _invalid("training.bf16", "is not supported by this GPU; use `fp16`")
    if not has_gpu and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores())
    return Accelerator(cpu=not has_gpu, mixed_precision=precision(training))


def cores(limit: Path = _CPU_LIMIT) -> int:
    """CPUs that this process may use, by its affinity and by its container's limit."""
    count = len(os.sched_getaffinity(0)) if sys.platform == "linux" else os.cpu_count() or 1
    if limit.is_file():
        quota, period = limit.read_text().split()
        if quota != "max":
            count = min(count, math.ceil(int(quota) / int(period)))
    return count


def precision(spec: TrainingSpec) -> str:
    if spec.bf16:
        return "bf16"
    return "fp16" if spec.fp16 else "no"


def attention(device: torch.device) -> str | None:
    """Name of the attention to train with; None is the model's own choice.

    With dropout torch's fused attention leaves its fast path on a CPU. The plain one then takes a
    quarter less of a step (MiniLM in bf16, 16 x 210 tokens, one core: 2.7 instead of 3.6 s).
    """
    return "eager" if device.type == "cpu" else None


def model(
    auto_model: Any, folder: Path, dtype: str, attention: str | None = None
) -> tuple[torch.nn.Module, list[str]]:
    """The pretrained model with its head, and the names of weights that start at random."""
    loaded, info = auto_model.from_pretrained(
        folder,
        use_safetensors=True,
        dtype=dtype,
        attn_implementation=attention,
        local_files_only=True,
        output_loading_info=True,
    )
    return loaded, sorted(info["missing_keys"])


def parameter_groups(model: torch.nn.Module, weight_decay: float) -> list[dict[str, Any]]:
    """Two groups: decayed weights, and biases and normalisation weights without decay."""
    decayed = set(get_parameter_names(model, [torch.nn.LayerNorm], _NO_DECAY))
    named = [(name, value) for name, value in model.named_parameters() if value.requires_grad]
    return [
        {"params": [v for n, v in named if n in decayed], "weight_decay": weight_decay},
        {"params": [v for n, v in named if n not in decayed], "weight_decay": 0.0},
    ]


def _adamw(groups: list[dict[str, Any]], spec: TrainingSpec) -> torch.optim.Optimizer:
    return torch.optim.AdamW(
        groups,
        lr=spec.learning_rate,
        betas=(spec.adam_beta1, spec.adam_beta2),
        eps=spec.adam_epsilon,
        # torch has the fused kernel for both of our devices, CPU and CUDA.
        fused=spec.optim == "adamw_torch_fused",
    )


def _adafactor(groups: list[dict[str, Any]], spec: TrainingSpec) -> torch.optim.Optimizer:
    return Adafactor(groups, lr=spec.learning_rate, scale_parameter=False, relative_step=False)


_OPTIMIZERS: Final[
    dict[str, Callable[[list[dict[str, Any]], TrainingSpec], torch.optim.Optimizer]]
] = {
    "adamw_torch": _adamw,
    "adamw_torch_fused": _adamw,
    "adafactor": _adafactor,
}


def optimizer(model: torch.nn.Module, spec: TrainingSpec) -> torch.optim.Optimizer:
    return _OPTIMIZERS[spec.optim](parameter_groups(model, spec.weight_decay), spec)


def scheduler(optimizer: Any, plan: Plan) -> Any:
    return get_scheduler(
        plan.spec.lr_scheduler_type,
        optimizer=optimizer,
        num_warmup_steps=plan.warmup_steps,
        num_training_steps=plan.total_steps,
    )


def loader(features: Features, batches: Sequence[list[int]], collate: Collate) -> DataLoader[Batch]:
    """Collated batches on the CPU, one for each list of indices."""
    return DataLoader(
        features,  # type: ignore[arg-type]  # any Sequence serves as a map-style dataset
        batch_sampler=batches,
        collate_fn=collate,
        # Its own, because the iterator draws a seed: from the default one it would disturb dropout.
        generator=torch.Generator(),
    )


def chunks(indices: Sequence[int], size: int) -> list[list[int]]:
    return [list(indices[start : start + size]) for start in range(0, len(indices), size)]


def _invalid(option: str, why: str) -> StageError:
    return StageError(FailureCode.INVALID_OPTION, f"`{option}` {why}", option=option)
