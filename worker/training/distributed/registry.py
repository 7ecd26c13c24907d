"""`resources.strategy`: its name to what does it."""

from typing import Any, Final

import torch
from accelerate import Accelerator

from service.contract.spec import JobSpec
from worker.training.distributed.ddp import Replicas
from worker.training.distributed.deepspeed import Zero
from worker.training.distributed.fsdp import Shards
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.strategy import BuildOptimizer, Strategy

REGISTRY: Final[dict[str, type[Replicas] | type[Shards] | type[Zero]]] = {
    "ddp": Replicas,
    "fsdp": Shards,
    "deepspeed": Zero,
}


def arguments(spec: JobSpec) -> dict[str, Any]:
    """What `Accelerator` is given for it. StageError(invalid_option): its package is missing."""
    return REGISTRY[spec.resources.chosen_strategy.type].arguments(spec)


def leaves_loaded_weights(spec: JobSpec, device: torch.device) -> bool:
    """Whether the training has copies of the weights that were loaded, on its device or in parts,
    and so leaves them as they are. Quantized ones are loaded onto the device at once."""
    if getattr(spec.peft, "quantization", None) is not None:
        return False
    return device.type != "cpu" or spec.resources.chosen_strategy.type == "fsdp"


def join(
    accelerator: Accelerator,
    model: torch.nn.Module,
    build_optimizer: BuildOptimizer,
    spec: JobSpec,
    ranks: Ranks,
) -> Strategy:
    """Hand the model over; the optimizer is built of what then holds its weights.

    StageError(invalid_option): options that do not fit the model.
    """
    chosen = REGISTRY[spec.resources.chosen_strategy.type]
    return chosen(accelerator, model, build_optimizer, spec, ranks)
