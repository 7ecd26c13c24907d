"""Checks LoRA on weights that bitsandbytes has quantized to 8 and 4 bits."""

import math
from typing import Any

from worker.doctor.check import Context, Finding, failed, ok
from worker.doctor.jobs import Jobs

_REMEDY = (
    "Install the bitsandbytes of constraints.txt (`python -m bitsandbytes` shows which CUDA it "
    "finds), or do not use `peft.quantization` on this machine."
)
_TOLERANCE = 0.05
"""Quantized weights change the first loss of a random model by less than one percent."""


def eight_bits(context: Context) -> Finding:
    return _lora(context, bits=8)


def four_bits(context: Context) -> Finding:
    return _lora(context, bits=4)


def _lora(context: Context, bits: int) -> Finding:
    jobs = Jobs.of(context)
    # Separate documents in a block: their mask must also work with quantized models.
    body = jobs.body("causal-lm", separate_documents=True)
    plain = jobs.train(body, sections=_adapter())
    quantized = jobs.train(body, sections=_adapter(bits))
    if not (plain.finished and quantized.finished):
        ended = quantized if plain.finished else plain
        what = f"LoRA on {bits}-bit weights" if plain.finished else "LoRA on plain weights"
        return failed(f"{what} failed", reason=ended.ending, remedy=_REMEDY)
    numbers: dict[str, Any] = {"losses": quantized.losses, "losses_unquantized": plain.losses}
    first, expected = quantized.losses[0], plain.losses[0]
    if not (_falls(quantized.losses) and abs(first - expected) <= _TOLERANCE * expected):
        return failed(
            f"LoRA on {bits}-bit weights does not learn",
            reason=f"losses {quantized.losses}; on plain weights {plain.losses}",
            remedy=_REMEDY,
            **numbers,
        )
    return ok(f"{bits}-bit LoRA: loss {first:.3f} to {quantized.losses[-1]:.3f}", **numbers)


def _adapter(bits: int | None = None) -> dict[str, Any]:
    lora = {"method": "lora", "r": 8, "lora_alpha": 32, "target_modules": "all-linear"}
    return {"peft": lora | ({"quantization": {"bits": bits}} if bits else {})}


def _falls(losses: list[float]) -> bool:
    return all(map(math.isfinite, losses)) and losses[-1] < losses[0]
