"""In which numbers a training computes: what `training.precision: auto` comes to here."""

import json
from pathlib import Path
from typing import Final, Literal

import torch

from service.contract.failures import FailureCode, StageError
from service.contract.spec import JobSpec

Precision = Literal["fp32", "bf16", "fp16"]

# They fill masks with float32's lowest number, which bfloat16 cannot hold: of the 65 types of
# models in transformers 5.23 that were tried out these alone fail.
_WITHOUT_BF16: Final = frozenset({"deberta"})

_CPUINFO: Final = Path("/proc/cpuinfo")
# Without them a CPU only imitates bfloat16, slower than it computes float32.
_BF16_FLAGS: Final = frozenset({"avx512_bf16", "amx_bf16"})


def resolved(
    spec: JobSpec, model_dir: Path, *, on_gpu: bool, earlier: Precision | None = None
) -> JobSpec:
    """`spec` without `auto`: its `precision`, `bf16` and `fp16` say what is done.

    `model_dir` holds the base model's `config.json`. `earlier` is what the training that is
    resumed began with, wherever that was: on another machine `auto` might come to something else,
    and the numbers would not go on. StageError(invalid_option) for a model that fails in the
    precision that is asked for.
    """
    if spec.training.precision != "auto":
        if spec.training.bf16 and _model_type(model_dir) in _WITHOUT_BF16:
            message = "`training.precision` cannot be `bf16` with this type of model; use `fp32`"
            raise StageError(FailureCode.INVALID_OPTION, message, option="training.precision")
        return spec
    chosen = earlier or _best(spec, model_dir, on_gpu=on_gpu)
    names = {"precision": chosen, "bf16": chosen == "bf16", "fp16": chosen == "fp16"}
    return spec.model_copy(update={"training": spec.training.model_copy(update=names)})


def _best(spec: JobSpec, model_dir: Path, *, on_gpu: bool) -> Precision:
    # Weights of another dtype are the user's own choice of what to compute in.
    if spec.model.dtype != "float32":
        return "fp32"
    if _model_type(model_dir) in _WITHOUT_BF16:
        return "fp32"
    able = gpu_has_bf16() if on_gpu else cpu_has_bf16()
    return "bf16" if able else "fp32"


def _model_type(model_dir: Path) -> str | None:
    config: dict[str, str] = json.loads((model_dir / "config.json").read_bytes())
    return config.get("model_type")


def gpu_has_bf16() -> bool:
    """Not merely by imitation."""
    able: bool = torch.cuda.is_bf16_supported(including_emulation=False)
    return able


def cpu_has_bf16(cpuinfo: Path = _CPUINFO) -> bool:
    """Whether this machine's processors multiply bfloat16 numbers; no where that is not told."""
    try:
        lines = cpuinfo.read_text().splitlines()
    except OSError:
        return False
    flags = next((line.partition(":")[2] for line in lines if line.startswith("flags")), "")
    return not _BF16_FLAGS.isdisjoint(flags.split())
