"""The precision of a training: what `training.precision: auto` means on this machine."""

import json
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final, Literal

import torch
from safetensors import safe_open

from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from worker.failures import invalid_option
from worker.training import flops
from worker.training.cpu_products import Trial

Precision = Literal["fp32", "bf16", "fp16"]

# These fill masks with float32's lowest number, which neither bfloat16 nor float16 can represent.
# Of the 65 model types of transformers 5.23 that were tested, only these fail.
_WITHOUT_HALF: Final = frozenset({"deberta"})

# Activations of these, or their gradients, exceed float16's 65,504; loss scaling cannot help.
# T5's family: transformers issues 4586, 5651, 11461 and 14189, pull request 10956. Pegasus: issue
# 12225. GPT-Neo: issue 11076. Gemma 3: issue 36822. The others are in unsloth's list of models that
# it never runs in float16 (unsloth-zoo pull requests 600 and 866).
_OVERFLOWING: Final = frozenset(
    {
        *("t5", "mt5", "umt5", "longt5", "switch_transformers", "t5gemma", "t5gemma2"),
        *("pegasus", "pegasus_x", "bigbird_pegasus", "gpt_neo", "gpt_oss"),
        *("gemma", "gemma2", "gemma3", "gemma3_text", "gemma3n", "gemma3n_text"),
        *("gemma4", "gemma4_text", "qwen3_moe", "qwen3_5", "qwen3_5_text", "glm4_moe"),
    }
)

_BF16_CAPABILITY: Final = (8, 0)  # Ampere
_FP16_CAPABILITY: Final = (7, 0)  # Volta, the first with tensor cores


def resolved(
    spec: JobSpec, model_dir: Path, cpu: Trial | None, *, earlier: Precision | None = None
) -> JobSpec:
    """`spec` with `auto` resolved: `precision`, `bf16` and `fp16` are those that are used.

    `model_dir` holds the base model's `config.json`; `cpu` is None on a GPU. `earlier` is the
    precision of the training that is resumed: on another machine `auto` might choose a different
    one, and the training would not continue with the same numbers. StageError(invalid_option) for
    a model that fails in the requested precision.
    """
    training = spec.training
    if training.precision != "auto":
        if training.precision != "fp32" and _model_type(model_dir) in _WITHOUT_HALF:
            raise invalid_option(
                "training.precision",
                f"cannot be `{training.precision}` with this type of model; use `fp32`",
            )
        if training.bf16 and cpu is not None and earlier is None:
            cpu.make()  # for `notices`
        return spec
    chosen = earlier or _best(spec, model_dir, cpu)
    names = {"precision": chosen, "bf16": chosen == "bf16", "fp16": chosen == "fp16"}
    return spec.model_copy(update={"training": training.model_copy(update=names)})


def with_trainable_weights(spec: JobSpec, model_dir: Path) -> JobSpec:
    """`spec` with `model.dtype: float32` instead of `auto` if all weights would train in float16:
    loss scaling rejects float16 gradients, and without it the updates underflow."""
    trains_all = spec.trains and spec.peft is None and spec.model.dtype == "auto"
    if not trains_all or stored_dtype(model_dir) != "float16":
        return spec
    return spec.model_copy(update={"model": spec.model.model_copy(update={"dtype": "float32"})})


def require_scalable(model: torch.nn.Module, spec: JobSpec) -> None:
    """StageError(invalid_option) if the scaler would reject the gradients of the first step."""
    if not (spec.training.fp16 and spec.trains):
        return
    half = [
        name
        for name, value in model.named_parameters()
        if value.requires_grad and value.dtype == torch.float16
    ]
    if half:
        raise invalid_option(
            "training.fp16",
            "scales the loss and needs the trained weights in float32, but "
            f"{len(half)} of them are float16: set `model.dtype` to `float32`",
            weights=half[:100],
        )


def notices(
    asked: JobSpec, chosen: JobSpec, model_dir: Path, cpu: Trial | None
) -> Iterator[Notice]:
    """Notices about what differs between `asked` and `chosen`, and about the precision's speed."""
    if asked.model.dtype != chosen.model.dtype:
        yield Notice(
            message="The stored weights are float16. They are loaded and trained as float32, "
            "because updates in float16 would be lost. The finished model is float32",
            data={"stored_dtype": "float16", "dtype": chosen.model.dtype},
        )
    if cpu is not None:
        yield from _cpu_notices(asked, chosen, cpu)
        return
    if gpu_has_bf16(chosen.resources.processes):
        return
    training = chosen.training
    if training.bf16:
        yield Notice(
            message=f"This GPU only emulates bfloat16, {_slower()}: set `precision: fp16`",
            data={"imitated": "bf16"},
        )
    kind = _model_type(model_dir)
    if asked.training.precision == "auto" and training.precision == "fp32" and kind in _OVERFLOWING:
        yield Notice(
            message=f"Training in float32, because this GPU has no bfloat16 and models of type "
            f"`{kind}` are known to exceed the range of float16; set `precision: fp16` to try it "
            "anyway",
            data={"model_type": kind},
        )


def _cpu_notices(asked: JobSpec, chosen: JobSpec, cpu: Trial) -> Iterator[Notice]:
    """What was measured, where it has decided or where the user has decided otherwise."""
    if cpu.seconds is None:
        return
    if asked.training.precision == "auto":
        advice = f"`precision: auto` is {chosen.training.precision}"
    elif not cpu.bfloat16_is_faster():
        advice = "set `precision: fp32`"
    else:
        return
    yield Notice(
        message=f"A pass through layers like this model's takes this CPU {cpu.seconds}: {advice}",
        data={"layer_seconds": asdict(cpu.seconds)},
    )


def _slower() -> str:
    name = torch.cuda.get_device_name()
    half, single = (flops.peak_of(name, kind, tf32=False) for kind in ("fp16", "no"))
    if half is None or single is None:
        return "which is no faster than float32"
    return (
        f"which is no faster than float32 (peak {single / 1e12:g} teraflops, and "
        f"{half / 1e12:g} in float16)"
    )


def _best(spec: JobSpec, model_dir: Path, cpu: Trial | None) -> Precision:
    kind = _model_type(model_dir)
    if kind in _WITHOUT_HALF:
        return "fp32"
    if spec.model.dtype != "float32":
        # By choosing another dtype for the weights, the user chooses what to compute in. But
        # without loss scaling the gradients of a frozen float16 model would underflow.
        dtype = stored_dtype(model_dir) if spec.model.dtype == "auto" else spec.model.dtype
        frozen_half = spec.peft is not None and dtype == "float16"
        return "fp16" if frozen_half and cpu is None and _may_scale(spec) else "fp32"
    if cpu is not None:
        return "bf16" if cpu.bfloat16_is_faster() else "fp32"
    if gpu_has_bf16(spec.resources.processes):
        return "bf16"
    fast = _gpus_have(_FP16_CAPABILITY, spec.resources.processes)
    return "fp16" if fast and _may_scale(spec) and kind not in _OVERFLOWING else "fp32"


def _may_scale(spec: JobSpec) -> bool:
    """Loss scaling needs the full gradients, so only DDP supports it."""
    return spec.resources.chosen_strategy.type == "ddp"


def stored_dtype(model_dir: Path) -> str | None:
    """What `model.dtype: auto` loads, as in transformers: by the configuration, else by the first
    weight; None if neither has a dtype."""
    config = _config(model_dir)
    named = config.get("dtype") or config.get("torch_dtype")
    return named.removeprefix("torch.") if isinstance(named, str) else _first_dtype(model_dir)


def _first_dtype(folder: Path) -> str | None:
    names = {"F16": "float16", "BF16": "bfloat16", "F32": "float32"}
    for file in sorted(folder.glob("*.safetensors")):
        with safe_open(file, "pt") as weights:
            kinds = (weights.get_slice(name).get_dtype() for name in weights.keys())  # noqa: SIM118
            known = next((names[kind] for kind in kinds if kind in names), None)
        if known is not None:
            return known
    return None


def _model_type(model_dir: Path) -> str | None:
    return _config(model_dir).get("model_type")


def _config(model_dir: Path) -> dict[str, Any]:
    config: dict[str, Any] = json.loads((model_dir / "config.json").read_bytes())
    return config


def gpu_has_bf16(gpus: int = 1) -> bool:
    """Whether all of the first `gpus` compute bfloat16, and do not only emulate it."""
    return torch.version.hip is not None or _gpus_have(_BF16_CAPABILITY, gpus)


def _gpus_have(capability: tuple[int, int], gpus: int) -> bool:
    return all(torch.cuda.get_device_capability(gpu) >= capability for gpu in range(gpus))
