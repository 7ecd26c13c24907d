"""The strategies by their names in `resources.strategy`."""

from typing import Final

import torch

from service.contract.spec.spec import JobSpec
from worker.training.distributed.ddp import DDPStrategy
from worker.training.distributed.deepspeed import DeepSpeedStrategy
from worker.training.distributed.fsdp import FSDPStrategy
from worker.training.distributed.strategy import Strategy

REGISTRY: Final[dict[str, type[Strategy]]] = {
    "ddp": DDPStrategy,
    "fsdp": FSDPStrategy,
    "deepspeed": DeepSpeedStrategy,
}


def strategy_of(spec: JobSpec) -> type[Strategy]:
    return REGISTRY[spec.resources.chosen_strategy.type]


def leaves_loaded_weights(spec: JobSpec, device: torch.device) -> bool:
    """Whether the training works on copies of the loaded weights, on its device or sharded, and
    does not change the originals. Quantized weights are loaded directly onto the device."""
    if getattr(spec.peft, "quantization", None) is not None:
        return False
    return device.type != "cpu" or spec.resources.chosen_strategy.type == "fsdp"
