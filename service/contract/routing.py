"""Which queue a stage waits in, and the message that rings for it."""

from typing import Final

from service.contract.spec import JobSpec
from service.contract.states import Stage

CPU_QUEUE: Final = "cpu"
GPU_QUEUE: Final = "gpu"
WAKE_TASK: Final = "worker.run.wake"
"""The one Celery task; its only argument is the job's id."""


def queue_for(stage: Stage, spec: JobSpec) -> str:
    """Only `train` needs a GPU, and only if the spec does not say `resources.gpus: 0`."""
    if stage is Stage.TRAIN and spec.resources.gpus != 0:
        return GPU_QUEUE
    return CPU_QUEUE
