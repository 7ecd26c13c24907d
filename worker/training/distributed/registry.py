"""The strategies by their names in `resources.strategy`."""

from typing import Any, Final

import torch
from accelerate import Accelerator

from service.contract.spec import JobSpec
from worker.training.distributed.ddp import DDPStrategy
from worker.training.distributed.deepspeed import DeepSpeedStrategy
from worker.training.distributed.fsdp import FSDPStrategy
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.strategy import BuildOptimizer, Strategy

REGISTRY: Final[dict[str, type[DDPStrategy] | type[FSDPStrategy] | type[DeepSpeedStrategy]]] = {
    "ddp": DDPStrategy,
    "fsdp": FSDPStrategy,
    "deepspeed": DeepSpeedStrategy,
}


def accelerator_arguments(spec: JobSpec) -> dict[str, Any]:
    """Arguments of `Accelerator` for the job's strategy. StageError(invalid_option) if the package
    that it needs is missing."""
    return REGISTRY[spec.resources.chosen_strategy.type].accelerator_arguments(spec)


def leaves_loaded_weights(spec: JobSpec, device: torch.device) -> bool:
    """Whether the training works on copies of the loaded weights, on its device or sharded, and
    does not change the originals. Quantized weights are loaded directly onto the device."""
    if getattr(spec.peft, "quantization", None) is not None:
        return False
    return device.type != "cpu" or spec.resources.chosen_strategy.type == "fsdp"


def create_strategy(
    accelerator: Accelerator,
    model: torch.nn.Module,
    build_optimizer: BuildOptimizer,
    spec: JobSpec,
    ranks: Ranks,
) -> Strategy:
    """The job's strategy around `model`, with the optimizer for its weights.

    StageError(invalid_option) if the options do not fit the model.
    """
    chosen = REGISTRY[spec.resources.chosen_strategy.type]
    return chosen(accelerator, model, build_optimizer, spec, ranks)
