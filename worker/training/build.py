"""Device and model from a job's options."""

import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin
from transformers import AutoConfig
from transformers.utils.import_utils import enable_tf32, is_torch_tf32_available

from service.contract.events import Notice
from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec
from worker.devices.cpus import cores
from worker.failures import invalid_option
from worker.processes import allocator
from worker.training import expandable_segments
from worker.training import precision as precisions
from worker.training.distributed import registry
from worker.training.kernels import (
    attention_masks,
    cpu_dropout,
    fused_gelu,
    gpu_padding_free,
    padding_free,
)
from worker.training.plan import Plan

_ALIGNMENT: Final = 64
"""Bytes: of what torch's CPU allocator gives."""


def accelerator(spec: JobSpec) -> Accelerator:
    """Accelerate on the job's device and precision. StageError(invalid_option) if it cannot be."""
    training = spec.training
    has_gpu = on_gpu(spec)
    _require_gpus(spec.resources.gpus or 0, torch.cuda.device_count() if has_gpu else 0)
    if training.fp16 and not has_gpu:
        raise invalid_option("training.fp16", "needs a GPU; use `bf16` on a CPU")
    if training.fp16 and spec.model.dtype == "float16" and spec.trains and spec.peft is None:
        raise invalid_option(
            "training.fp16", "needs float32 weights; set `model.dtype` to `float32`"
        )
    if training.fp16_full_eval and not has_gpu:
        raise invalid_option(
            "training.fp16_full_eval", "needs a GPU; use `bf16_full_eval` on a CPU"
        )
    if training.bf16 and has_gpu and not torch.cuda.is_bf16_supported():
        raise invalid_option("training.bf16", "is not supported by this GPU; use `fp16`")
    if not has_gpu and "OMP_NUM_THREADS" not in os.environ:
        torch.set_num_threads(cores())
    _require_tf32(training, has_gpu=has_gpu)
    made = Accelerator(
        cpu=not has_gpu,
        mixed_precision=precision(training),
        dynamo_plugin=_compiler(training, has_gpu=has_gpu),
        **registry.arguments(spec),
    )
    # After Accelerator, which turns TF32 on for a compiled model in float32, whatever was asked.
    if has_gpu:
        _set_tf32(training)
    expandable_segments.enable(made.device)
    return made


def flush_denormals() -> None:
    """Take numbers too small for a float's exponent for 0: a processor takes dozens of times as
    long for them. For this thread and those that it starts from now on, so before OpenMP's."""
    torch.set_flush_denormal(True)


def on_gpu(spec: JobSpec) -> bool:
    """Whether the job trains on a GPU of this machine."""
    on_cpu = spec.training.use_cpu or spec.resources.gpus == 0
    return torch.cuda.is_available() and not on_cpu


def _require_gpus(asked: int, found: int) -> None:
    if found < asked:
        has = f"{found}" if found else "none"
        wanted = "a GPU" if asked == 1 else f"{asked} GPUs"
        raise invalid_option("resources.gpus", f"asks for {wanted}, but this worker has {has}")


def _require_tf32(spec: TrainingSpec, *, has_gpu: bool) -> None:
    if spec.tf32 and not (has_gpu and is_torch_tf32_available()):
        raise invalid_option("training.tf32", "needs an Ampere GPU or a newer one")


def _set_tf32(spec: TrainingSpec) -> None:
    """As TrainingArguments: for the whole process, and by itself when the model is compiled.

    By torch's old switches as well as by its new ones: where they differ, reading an old one is an
    error, and torch's compiler does read them."""
    wanted = spec.tf32
    if wanted is None and spec.compiles and not spec.fp16:
        wanted = True
    if wanted is None or not is_torch_tf32_available():
        return
    torch.backends.cuda.matmul.allow_tf32 = wanted
    torch.backends.cudnn.allow_tf32 = wanted
    enable_tf32(wanted)


def _compiler(spec: TrainingSpec, *, has_gpu: bool) -> TorchDynamoPlugin | None:
    if not spec.compiles:
        return None
    backend = spec.torch_compile_backend or "inductor"
    if backend == "inductor" and not has_gpu and shutil.which("c++") is None:
        raise invalid_option("training.torch_compile", "needs a C++ compiler on a CPU")
    if backend == "cudagraphs" and not has_gpu:
        raise invalid_option("training.torch_compile_backend", "`cudagraphs` needs a GPU")
    return TorchDynamoPlugin(backend=backend, mode=spec.torch_compile_mode)


def notice(accelerator: Accelerator, plan: Plan, asked: str) -> Notice:
    """Where and how it trains. `asked`: the `precision` before it was resolved."""
    return placement_notice(accelerator, plan.spec, asked, "Training", steps=plan.total_steps)


def placement_notice(
    accelerator: Accelerator, spec: TrainingSpec, asked: str, doing: str, **counts: int
) -> Notice:
    """Where and how it does what it does; `counts` of what lies ahead."""
    device, processes = accelerator.device, accelerator.num_processes
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        where = f"the CPU with {torch.get_num_threads()} threads"
    imitated = device.type == "cpu" and spec.bf16 and not precisions.cpu_has_bf16()
    slow = "; this CPU only imitates bfloat16, slower than it computes float32" if imitated else ""
    names = {"no": "float32", "bf16": "bfloat16 autocast", "fp16": "float16 autocast"}
    name = names[accelerator.mixed_precision] + (" (`precision: auto`)" if asked == "auto" else "")
    together = f" in {processes} processes" if processes > 1 else ""
    ahead = "".join(f", {count} {what}" for what, count in counts.items())
    return Notice(
        message=f"{doing} on {where}{together} in {name}{ahead}{slow}",
        data={
            "device": str(device),
            "precision": spec.precision,
            **counts,
            "processes": processes,
            "loader_workers": spec.dataloader_num_workers or 0,
            "eval_batch_size": spec.eval_batch_size,
            "expandable_segments": expandable_segments.enabled(),
            "malloc": allocator.loaded() or allocator.SYSTEM,
        },
    )


def precision(spec: TrainingSpec) -> str:
    """Accelerate's name of it; `auto` is resolved (`worker.training.precision`)."""
    return {"fp32": "no"}.get(spec.precision, spec.precision)


def choose_attention(
    model: Any, spec: JobSpec, device: torch.device, given: gpu_padding_free.ChoiceInputs
) -> bool:
    """On a CPU ours, where it computes what the model's plain one does; on a GPU torch's kernels
    for packed batches, where they do, or the model's own choice, of whose masks the device is not
    asked. Whether batches are computed without padding.

    With dropout torch's fused attention leaves its fast path on a CPU. The plain one then takes a
    quarter less of a step (MiniLM in bf16, 16 x 210 tokens, one core: 2.7 instead of 3.6 s).

    StageError(invalid_option) when `training.padding_free` is true and cannot be had.
    """
    why: str | None = "cannot be had with the job's other options"
    if device.type == "cpu":
        model.set_attn_implementation("eager")
        if may_be_padding_free(spec):
            free = padding_free.install(model) is not None
            why = None if free else "does not go with this model's attention"
    elif not spec.training.compiles:
        attention_masks.install()
        if may_be_padding_free(spec):
            why = gpu_padding_free.install(model, spec, device, given)
    if spec.training.padding_free and why is not None:
        raise invalid_option("training.padding_free", why)
    return why is None


def quicken(model: torch.nn.Module, spec: JobSpec, device: torch.device) -> None:
    """Put faster modules in the place of the model's, which a compiler does by itself: activations,
    and on a CPU dropout; but where `padding_free: false` asks for what the Trainer computes."""
    if spec.training.compiles or spec.training.padding_free is False:
        return
    fused_gelu.install(model)
    if device.type == "cpu":
        cpu_dropout.install(model)


def may_be_padding_free(spec: JobSpec) -> bool:
    """Whether nothing but the model can be in its way: no compiler, no noise that is measured by
    the length, no adapter that lengthens the sequences."""
    training = spec.training
    return (
        training.padding_free is not False
        and not training.compiles
        and training.neftune_noise_alpha is None
        and (spec.peft is None or spec.peft.method in {"lora", "ia3"})
    )


def may_capture_head(spec: JobSpec) -> bool:
    """Whether `linear_loss` may look at what the head is given: a compiler would take the hook for
    a part of the model; virtual tokens are in its way."""
    return not spec.training.compiles and (spec.peft is None or spec.peft.method in {"lora", "ia3"})


def model(
    auto_model: Any, folder: Path, dtype: str, overrides: Mapping[str, Any], **loading: Any
) -> tuple[torch.nn.Module, list[str]]:
    """The pretrained model with its head, and the names of weights that start at random.

    With `overrides` of its configuration, which give the head its size, a stored head of another
    size is left out. `loading` are further arguments of `from_pretrained`.
    StageError(unsupported_architecture) if anything else has another size.
    """
    loaded, info = auto_model.from_pretrained(
        folder,
        use_safetensors=True,
        dtype=dtype,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=bool(overrides),
        **loading,
        **overrides,
    )
    unlike = {name for name, *_shapes in info["mismatched_keys"]}
    body = sorted(name for name in unlike if name.startswith(f"{loaded.base_model_prefix}."))
    if body:
        raise StageError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"These weights do not have the sizes that config.json states: {', '.join(body[:10])}",
            weights=body[:100],
        )
    return loaded, sorted(unlike.union(info["missing_keys"]))


def align(model: torch.nn.Module) -> None:
    """Move weights that begin where torch would put none, as those of a mapped file may, to places
    of torch's own. By the place MKL rounds a product with a single row otherwise, and a finished
    model that is loaded again would give other numbers than in the training that made it."""
    for weight in model.parameters():
        if weight.is_floating_point() and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def model_from_scratch(
    auto_model: Any, folder: Path, dtype: str, overrides: Mapping[str, Any]
) -> torch.nn.Module:
    """A model of the configuration in `folder`, its weights drawn from torch's generator."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, **overrides)
    made: torch.nn.Module = auto_model.from_config(
        config, dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype)
    )
    return made


def prepare_model(model: torch.nn.Module, spec: TrainingSpec) -> None:
    """What an option changes in the loaded model. StageError(invalid_option) if it cannot."""
    if not spec.activation_checkpointing:
        return
    arguments = dict(spec.activation_checkpointing_kwargs or {})
    every = arguments.pop("every_n_layers", 1)
    offload = arguments.pop("offload", False)
    checkpointed: Any = model
    try:
        checkpointed.activation_checkpointing_enable(
            arguments or None, every_n_layers=every, offload=offload
        )
    except (ValueError, TypeError) as error:
        raise invalid_option("training.activation_checkpointing", str(error)) from error
