"""Quantized base weights, by bitsandbytes."""

import importlib.util
from pathlib import Path
from typing import Any

import torch
from transformers import AutoConfig, BitsAndBytesConfig, PreTrainedModel

from service.contract.spec.peft import LoraSpec, QuantizationSpec
from service.contract.spec.spec import JobSpec
from worker.failures import invalid_option


def loading(spec: JobSpec, auto_model: Any, folder: Path, device: torch.device) -> dict[str, Any]:
    """Arguments of `from_pretrained` for `peft.quantization`; empty without it.

    StageError(invalid_option) if bitsandbytes is missing, and for 4 bits on a CPU.
    """
    wanted = spec.peft.quantization if isinstance(spec.peft, LoraSpec) else None
    if wanted is None:
        return {}
    if importlib.util.find_spec("bitsandbytes") is None:
        why = "needs the package bitsandbytes, which this worker does not have"
        raise invalid_option("peft.quantization", why)
    if wanted.bits == 4 and device.type == "cpu":
        # bitsandbytes 0.50 repacks the weights for an evaluation; the backward pass then fails.
        why = "is 4, which needs a GPU; use 8 to train on a CPU"
        raise invalid_option("peft.quantization.bits", why)
    return {
        "quantization_config": _config(wanted, spec, _heads(auto_model, folder)),
        "device_map": {"": device},
    }


def _config(wanted: QuantizationSpec, spec: JobSpec, whole: list[str]) -> BitsAndBytesConfig:
    if wanted.bits == 8:
        return BitsAndBytesConfig(load_in_8bit=True, llm_int8_skip_modules=whole)
    training = spec.training
    autocast = "bfloat16" if training.bf16 else "float16" if training.fp16 else "float32"
    return BitsAndBytesConfig(
        load_in_4bit=True,
        bnb_4bit_quant_type=wanted.quant_type or "nf4",
        bnb_4bit_use_double_quant=bool(wanted.double_quant),
        bnb_4bit_compute_dtype=getattr(torch, wanted.compute_dtype or autocast),
        llm_int8_skip_modules=whole,
    )


def _heads(auto_model: Any, folder: Path) -> list[str]:
    """Modules outside the body: they keep their precision, and new ones train."""
    with torch.device("meta"):
        model = auto_model.from_config(AutoConfig.from_pretrained(folder, local_files_only=True))
    return [
        name
        for name, child in model.named_children()
        if name != model.base_model_prefix
        and not isinstance(child, PreTrainedModel | torch.nn.Embedding)
    ]
