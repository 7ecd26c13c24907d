"""`resources.strategy`: what Accelerate is given for it."""

from datetime import timedelta
from typing import Any

from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from service.contract.spec import JobSpec


def arguments(spec: JobSpec) -> dict[str, Any]:
    """Of `Accelerator`; none for a single process."""
    if spec.resources.processes == 1:
        return {}
    options = spec.resources.chosen_strategy.model_dump(exclude={"type"})
    waiting = InitProcessGroupKwargs(timeout=timedelta(seconds=options.pop("timeout")))
    if options["find_unused_parameters"] is None:
        # As in Trainer: weights without a gradient are common, and checkpointed layers are
        # computed again where the search would look.
        options["find_unused_parameters"] = not spec.training.activation_checkpointing
    return {"kwargs_handlers": [waiting, DistributedDataParallelKwargs(**options)]}
