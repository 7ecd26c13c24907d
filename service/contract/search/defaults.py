"""The space of a search that names none, by task, as the reference trainer has one.

The reference's (`default_hp_space_optuna`) is the same for all models: learning rates from 1e-6 to
1e-4, 1 to 5 epochs, batches of 4 to 64, and the seed. The rates here are those that the models'
authors searched: 1e-5 to 1e-4 for encoders (Devlin et al. 2019, Liu et al. 2019), higher ones for
encoder-decoders, and ten times as high for adapters, whose weights begin at zero (Hu et al. 2021).
The seed does not vary: the best of several seeds is luck, and not a better value.
"""

from collections.abc import Mapping
from typing import Any, Final

from service.contract.fields import bounds
from service.contract.search.pruners import NoPruner, PrunerSpec
from service.contract.search.space import Dimension, value_at
from service.contract.spec.spec import JobSpec

_ENCODER: Final = (1e-5, 1e-4)
_RATES: Final[dict[str, tuple[float, float]]] = {
    "question-answering": _ENCODER,
    "text-classification": _ENCODER,
    "token-classification": _ENCODER,
    "masked-lm": _ENCODER,
    "causal-lm": (5e-6, 5e-4),
    "summarization": (1e-5, 1e-3),
    "translation": (1e-5, 1e-3),
    "chat": (5e-6, 2e-4),
    # Preferences and rewards are learnt with small steps (Rafailov et al. 2023).
    "preference": (1e-7, 5e-5),
    "reward": (1e-6, 1e-4),
}
_OF_ADAPTERS: Final[dict[str, tuple[float, float]]] = {
    "lora": (1e-5, 1e-3),
    # Few weights, each with little effect: 3e-3 for (IA)³ (Liu et al. 2022), 0.3 for prompts
    # (Lester et al. 2021), and between them for prefixes.
    "ia3": (1e-4, 1e-2),
    "prompt-tuning": (1e-3, 3e-1),
    "prefix-tuning": (1e-4, 1e-1),
}
_RANKS: Final = (4, 8, 16, 32)
_MOST_EPOCHS: Final = 5


def space(job: JobSpec) -> dict[str, Dimension]:
    """By path, of the fields that the template leaves free."""
    low, high = _RATES[job.task.type] if job.peft is None else _OF_ADAPTERS[job.peft.method]
    batch = job.training.per_device_train_batch_size
    found: dict[str, Any] = {
        "training.learning_rate": {"low": low, "high": high, "log": True},
        # Around the template's, which fits into the memory.
        "training.per_device_train_batch_size": {
            "choices": sorted({max(1, batch // 2), batch, min(batch * 2, bounds.MOST_EXAMPLES)})
        },
    }
    if job.training.max_steps <= 0:
        found["training.num_train_epochs"] = {"low": 1, "high": _MOST_EPOCHS, "type": "int"}
    if job.peft is not None and "r" in type(job.peft).model_fields:
        found["peft.r"] = {"choices": list(_RANKS)}
    return {path: Dimension.model_validate(given) for path, given in found.items()}


def with_unit(pruner: PrunerSpec, job: JobSpec) -> PrunerSpec:
    """A pruner that names no unit counts as the template's evaluations do."""
    if isinstance(pruner, NoPruner) or "unit" in pruner.model_fields_set:
        return pruner
    unit = "epochs" if job.training.eval_strategy == "epoch" else "steps"
    return pruner.model_copy(update={"unit": unit})


def template_values(job: JobSpec, dimensions: Mapping[str, Dimension]) -> dict[str, Any]:
    """The template's value of each field of the space, defaults included."""
    whole = job.model_dump(mode="json")
    return {path: value_at(whole, path) for path in dimensions}
