"""Building the accelerator and the model from a job's options."""

import os
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.utils import TorchDynamoPlugin
from transformers import AutoConfig
from transformers.utils.import_utils import enable_tf32, is_torch_tf32_available

from service.contract.failures import FailureCode, StageError
from service.contract.spec.spec import JobSpec
from service.contract.spec.step_intervals import longer_than
from service.contract.spec.training import TrainingSpec
from service.contract.stage.events import Notice
from worker.devices.cpus import cores
from worker.failures import invalid_option
from worker.processes import allocator
from worker.training.distributed.registry import strategy_of
from worker.training.kernels import (
    adapter_inputs,
    attention_masks,
    cpu_dropout,
    fused_gelu,
    gpu_padding_free,
    lean_layers,
    padding_free,
)
from worker.training.memory import expandable_segments
from worker.training.plan import Plan

_ALIGNMENT: Final = 64
"""Bytes; the alignment of torch's CPU allocator."""


def accelerator(spec: JobSpec) -> Accelerator:
    """Accelerate on the job's device and in its precision. StageError(invalid_option) if the device
    does not support the job's options."""
    training = spec.training
    has_gpu = on_gpu(spec)
    asked, found = spec.resources.gpus or 0, torch.cuda.device_count() if has_gpu else 0
    if found < asked:
        wanted = "a GPU" if asked == 1 else f"{asked} GPUs"
        why = f"requests {wanted}, but this worker has {found or 'none'}"
        raise invalid_option("resources.gpus", why)
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
    if training.tf32 and not (has_gpu and is_torch_tf32_available()):
        raise invalid_option("training.tf32", "needs an Ampere GPU or a newer one")
    made = Accelerator(
        cpu=not has_gpu,
        mixed_precision=mixed_precision(training),
        dynamo_plugin=_compiler(training, has_gpu=has_gpu),
        **strategy_of(spec).accelerator_arguments(spec),
    )
    # After Accelerator, which turns TF32 on for a compiled model in float32, whatever the option.
    if has_gpu:
        _set_tf32(training)
    expandable_segments.enable(made.device)
    return made


def flush_denormals() -> None:
    """Treat denormal numbers as 0: CPUs are dozens of times slower with them. Applies to this
    thread and those that it starts later, so call it before OpenMP starts its threads."""
    torch.set_flush_denormal(True)


def on_gpu(spec: JobSpec) -> bool:
    """Whether the job trains on a GPU of this machine."""
    on_cpu = spec.training.use_cpu or spec.resources.gpus == 0
    return torch.cuda.is_available() and not on_cpu


def _set_tf32(spec: TrainingSpec) -> None:
    """As TrainingArguments: for the whole process, and by default when the model is compiled.

    Sets torch's old switches as well as its new ones: if they differ, reading an old one is an
    error, and torch's compiler reads them."""
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


def interval_notices(plan: Plan) -> Iterator[Notice]:
    """Options whose interval is longer than the training. With `max_steps` the API has reported it
    already."""
    if plan.spec.max_steps > 0:
        return
    for option, sentence in longer_than(plan.total_steps, plan.spec):
        message = f"`training.{option}`: {sentence}"
        yield Notice(message=message, data={"option": option, "steps": plan.total_steps})


def placement_notice(
    accelerator: Accelerator, spec: TrainingSpec, asked: str, doing: str, **counts: int
) -> Notice:
    """The device, precision and processes of a training or evaluation. `asked`: the `precision`
    before it was resolved; `counts`: of the steps or examples to come."""
    device, processes = accelerator.device, accelerator.num_processes
    if device.type == "cuda":
        where = torch.cuda.get_device_name(device)
    else:
        threads = torch.get_num_threads()
        where = f"the CPU with {threads} thread{'s' if threads > 1 else ''}"
    names = {"no": "float32", "bf16": "bfloat16 autocast", "fp16": "float16 autocast"}
    name = names[accelerator.mixed_precision] + (" (`precision: auto`)" if asked == "auto" else "")
    together = f" in {processes} processes" if processes > 1 else ""
    ahead = "".join(f", {count} {what}" for what, count in counts.items())
    return Notice(
        message=f"{doing} on {where}{together} in {name}{ahead}",
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


def mixed_precision(spec: TrainingSpec) -> str:
    """Accelerate's name for the precision, which must not be `auto` (`worker.training.precision`
    resolves that)."""
    return {"fp32": "no"}.get(spec.precision, spec.precision)


def choose_attention(
    model: Any, spec: JobSpec, device: torch.device, given: gpu_padding_free.ChoiceInputs
) -> bool:
    """Choose the model's attention; returns whether batches are computed without padding.

    On a CPU this is our attention, if it computes the same as the model's own. On a GPU it is one
    of torch's kernels for packed batches, if they compute the same, or else the model's own with
    masks that need no device sync.

    With dropout torch's fused attention leaves its fast path on a CPU. The plain one then takes a
    quarter less of a step (MiniLM in bf16, 16 x 210 tokens, one core: 2.7 instead of 3.6 s).

    StageError(invalid_option) if `training.padding_free` is true and not possible.
    """
    why: str | None = "cannot be combined with the job's other options"
    if device.type == "cpu":
        model.set_attn_implementation("eager")
        if may_be_padding_free(spec):
            free = padding_free.install(model) is not None
            why = None if free else "cannot be used with this model's attention"
    elif not spec.training.compiles:
        attention_masks.install()
        if may_be_padding_free(spec):
            why = gpu_padding_free.install(model, spec, device, given)
    if spec.training.padding_free and why is not None:
        raise invalid_option("training.padding_free", why)
    return why is None


def install_fast_modules(model: torch.nn.Module, spec: JobSpec, device: torch.device) -> None:
    """Replace some of the model's modules by faster or smaller ones: its activations, the inputs of
    adapters, and on a CPU dropout, norms and gated MLPs. A compiler does that itself, and
    `padding_free: false` requests exactly what the Trainer computes."""
    if spec.training.compiles or spec.training.padding_free is False:
        return
    fused_gelu.install(model)
    adapter_inputs.install(model)
    if device.type == "cpu":
        cpu_dropout.install(model)
        lean_layers.install(model)


def may_be_padding_free(spec: JobSpec) -> bool:
    """Whether the job's options allow it: no compiler, no noise that depends on the length, no
    adapter that lengthens the sequences."""
    training = spec.training
    return (
        training.padding_free is not False
        and not training.compiles
        and training.neftune_noise_alpha is None
        and (spec.peft is None or spec.peft.method in {"lora", "ia3"})
    )


def may_capture_head(spec: JobSpec) -> bool:
    """Whether `chunked_cross_entropy` may capture the head's input: a compiler would compile the
    hook into the model, and virtual tokens would be part of the input."""
    return not spec.training.compiles and (spec.peft is None or spec.peft.method in {"lora", "ia3"})


def load_model(
    auto_model: Any, folder: Path, dtype: str, overrides: Mapping[str, Any], **loading: Any
) -> tuple[torch.nn.Module, list[str]]:
    """The pretrained model with its head, and the names of weights that start at random.

    `overrides` of the configuration set the size of the head; a stored head of another size is then
    not loaded. `loading`: further arguments of `from_pretrained`.
    StageError(unsupported_architecture) if any other weight has another size, and
    StageError(invalid_model) if the files hold none of the model's weights.
    """
    loaded, info = auto_model.from_pretrained(
        folder,
        use_safetensors=True,
        dtype=dtype,
        local_files_only=True,
        output_loading_info=True,
        ignore_mismatched_sizes=True,  # the error names them
        **loading,
        **overrides,
    )
    unlike = {name for name, *_shapes in info["mismatched_keys"]}
    is_body = f"{loaded.base_model_prefix}." if overrides else ""
    body = sorted(name for name in unlike if name.startswith(is_body))
    if body:
        raise StageError(
            FailureCode.UNSUPPORTED_ARCHITECTURE,
            f"These weights differ in size from the model's config.json: {', '.join(body[:10])}",
            weights=body[:100],
        )
    new = sorted(unlike.union(info["missing_keys"]))
    if new and {name for name, _ in loaded.named_parameters()} <= set(new):
        message = "The files hold none of the weights of the model that config.json describes"
        raise StageError(FailureCode.INVALID_MODEL, message, weights=new[:100])
    return loaded, new


def align_weights(model: torch.nn.Module) -> None:
    """Copy weights whose memory is not aligned like torch's own, as in a mapped file.

    MKL rounds a product with a single row differently depending on the alignment, so a finished
    model that is loaded again would give other numbers than during its training.
    """
    for weight in model.parameters():
        if weight.is_floating_point() and weight.data_ptr() % _ALIGNMENT:
            weight.data = weight.data.clone()


def create_model(
    auto_model: Any, folder: Path, dtype: str, overrides: Mapping[str, Any]
) -> torch.nn.Module:
    """A model of the configuration in `folder`, with weights drawn from torch's generator."""
    config = AutoConfig.from_pretrained(folder, local_files_only=True, **overrides)
    made: torch.nn.Module = auto_model.from_config(
        config, dtype=torch.float32 if dtype == "auto" else getattr(torch, dtype)
    )
    return made


def prepare_model(model: torch.nn.Module, spec: TrainingSpec) -> None:
    """Apply `activation_checkpointing` to the loaded model. StageError(invalid_option) if the model
    does not support it."""
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
