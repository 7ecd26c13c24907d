"""Each kind of kernel trains as its plain form does: two trainings of the same data must have the
same losses."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from worker.doctor.check import GPU, Context, Finding, failed, ok, warning
from worker.doctor.jobs import Jobs, StageFailedError

Options = Mapping[str, Any]


@dataclass(frozen=True)
class Pair:
    """`plain` and each of `kernels` are options of `training`, `spec` and `kernels_spec` the other
    sections of the two trainings' specs."""

    title: str
    remedy: str
    tolerance: float
    """The largest difference of a loss, as a share of the plain one."""
    task: str = "causal-lm"
    parameters: Options = field(default_factory=dict)
    plain: Options = field(default_factory=dict)
    kernels: tuple[Options, ...] = ({},)
    spec: Options = field(default_factory=dict)
    kernels_spec: Options = field(default_factory=dict)
    strategy: str | None = None
    """The kernel's training is one of several processes, on GPUs if there are two or more."""
    is_packed: bool = False
    """The kernel's batches have no padding, in bfloat16 if the GPU can: it has other kernels."""
    needs: tuple[str, ...] = ()


_BITSANDBYTES: Final = (
    "Install the bitsandbytes of constraints.txt (`python -m bitsandbytes` shows which CUDA it "
    "finds), or do not use `peft.quantization` and its optimizers on this machine."
)
_PADDED: Final = "Set `training.padding_free: false` in jobs on this machine, and send this report."
_ALONE: Final = (
    "Set NCCL_DEBUG=INFO and run this again: NCCL then reports what is missing. Until it works, "
    "train with `resources.gpus: 1`, and send this report."
)
_SLOW: Final = {"learning_rate": 1e-3}  # keeps rounding differences small
_LORA: Final = {"method": "lora", "r": 8, "lora_alpha": 32, "target_modules": "all-linear"}


def _lora(bits: int, *needs: str) -> Pair:
    # Separate documents in a block: their mask must also work with quantized models.
    return Pair(
        f"{bits}-bit LoRA",
        _BITSANDBYTES,
        tolerance=0.05,
        parameters={"separate_documents": True},
        spec={"peft": _LORA},
        kernels_spec={"peft": {**_LORA, "quantization": {"bits": bits}}},
        needs=(*needs, "bitsandbytes", "peft"),
    )


def _optimizers(title: str, remedy: str, *names: str, needs: tuple[str, ...]) -> Pair:
    kernels = tuple({"optim": name} for name in names)
    # States in 8 or 4 bits are rounded.
    return Pair(title, remedy, 0.1, plain={"optim": "adamw_torch"}, kernels=kernels, needs=needs)


def _packed(title: str, task: str, **parameters: Any) -> Pair:
    plain = {**_SLOW, "padding_free": False}
    return Pair(title, _PADDED, 2e-3, task, parameters, plain, (_SLOW,), is_packed=True)


def _ranks(strategy: str) -> Pair:
    plain = {**_SLOW, "per_device_train_batch_size": 8}
    title = f"{strategy.upper()} in several processes"
    return Pair(title, _ALONE, 1e-3, plain=plain, kernels=(_SLOW,), strategy=strategy)


PAIRS: Final[dict[str, Pair]] = {
    "bf16": Pair(
        "bfloat16",
        "Use `precision: fp32`, and send this report.",
        tolerance=2e-2,
        plain=_SLOW,
        kernels=({**_SLOW, "precision": "bf16"},),
    ),
    "lora-8-bit": _lora(8),
    "lora-4-bit": _lora(4, GPU),
    "optimizers-paged": _optimizers(
        "paged optimizers",
        _BITSANDBYTES,
        "paged_adamw_32bit",
        "paged_adamw_8bit",
        needs=(GPU, "bitsandbytes"),
    ),
    "optimizers-torchao": _optimizers(
        "torchao's optimizers",
        "torchao compiles its optimizers: install a C++ compiler (gcc and g++; on a GPU also "
        "Python's headers), or use `optim: adamw_torch_fused` here.",
        "adamw_torch_8bit",
        "adamw_torch_4bit",
        needs=("torchao",),
    ),
    "packing": _packed("batches without padding", "token-classification"),
    "packing-documents": _packed(
        "documents that share a block", "causal-lm", separate_documents=True
    ),
    "packing-chat": _packed("packed conversations", "chat"),
    "packing-preference": _packed("pairs without padding", "preference"),
    "ranks-ddp": _ranks("ddp"),
    "ranks-fsdp": _ranks("fsdp"),
}


def compare(context: Context, jobs: Jobs) -> Finding:
    """The pair of this check's name."""
    pair = PAIRS[context.name]
    body = jobs.body(pair.task, **pair.parameters)
    capabilities: Any = [gpu["capability"] for gpu in context.torch.devices]
    has_bf16 = bool(capabilities) and capabilities[0][0] >= 8  # Ampere
    shared: dict[str, Any] = {"precision": "bf16"} if pair.is_packed and has_bf16 else {}
    tolerance = pair.tolerance * (10 if shared else 1)
    plain = jobs.train({**body, **pair.spec}, **shared, **pair.plain)
    losses = {"plain": plain.losses}
    for options in pair.kernels:
        changed = {**body, **pair.kernels_spec}
        if pair.strategy is not None:
            processes, resources = _ranks_of(pair.strategy, context)
            changed |= {"resources": resources}
            options = {**options, "per_device_train_batch_size": 8 // processes}
        try:
            kernel = jobs.train(changed, **shared, **options)
        except StageFailedError as error:
            return failed(
                f"{pair.title}: the training fails", reason=str(error), remedy=pair.remedy
            )
        losses[str(options.get("optim", context.name))] = kernel.losses
        if not _equal(kernel.losses, plain.losses, tolerance):
            reason = f"losses {kernel.losses}, of the plain form {plain.losses}; {dict(options)}"
            summary = f"{pair.title}: other losses than the plain form"
            return failed(summary, reason=reason, remedy=pair.remedy, losses=losses)
        was_packed = any(notice.data.get("padding_free") for notice in kernel.notices)
        if pair.is_packed and not was_packed:
            return warning(
                "no batch was computed without padding",
                reason="; ".join(notice.message for notice in kernel.notices),
                remedy="No action needed: trainings work, but uneven batches are slower.",
            )
    return ok(f"{pair.title}: the losses of the plain form, within {tolerance:.1%}", losses=losses)


def _equal(found: list[float], plain: list[float], tolerance: float) -> bool:
    falls = [losses[-1] < losses[0] for losses in (found, plain)]
    pairs = zip(found, plain, strict=True)
    return falls[0] >= falls[1] and all(math.isclose(a, b, rel_tol=tolerance) for a, b in pairs)


def _ranks_of(strategy: str, context: Context) -> tuple[int, dict[str, Any]]:
    """How many processes, and the `resources` of the spec: of 2, 4 or 8 GPUs, else the CPU's."""
    gpus = len(context.torch.devices)
    processes = next((count for count in (8, 4, 2) if count <= gpus), 2)
    where: dict[str, Any] = {"gpus": processes}
    if gpus < 2:
        where = {"gpus": 0, "num_processes": processes}
    return processes, {**where, "strategy": {"type": strategy}}
