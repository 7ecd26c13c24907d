"""Which queue a stage, a preview or a prediction waits in, and what wakes a worker for it."""

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any, Final, NamedTuple

from service.contract.spec.resources import MOST_PROCESSES
from service.contract.spec.spec import JobSpec
from service.contract.states import Stage

CPU_QUEUE: Final = "cpu"
GPU_QUEUE: Final = "gpu"
PREVIEW_QUEUE: Final = "preview"
"""For workers that make previews alone, while those of the CPU queue are busy."""
PREDICT_QUEUE: Final = "predict"
"""For workers that answer predictions alone, and keep their model in memory for the next one."""
WAKE_TASK: Final = "worker.run.wake"
"""The one Celery task; its arguments are the kind and the id of a message."""


class MessageKind(StrEnum):
    JOB = "job"
    PREVIEW = "preview"
    PREDICTION = "prediction"
    SEARCH = "search"
    """The search with this id has data that MLflow lacks."""
    MLFLOW_REMOVAL = "mlflow_removal"
    """The files of the run with this id are to be removed from MLflow."""


class Message(NamedTuple):
    """Wakes a worker that reads the row with this id. The row in the database is the truth."""

    kind: MessageKind
    id: str
    queue: str
    priority: int


def gpu_queue(gpus: int) -> str:
    """The queue of trainings that need this many GPUs; without a number, that of one GPU."""
    return GPU_QUEUE if gpus < 2 else f"{GPU_QUEUE}.{gpus}"


QUEUES: Final = (CPU_QUEUE, *map(gpu_queue, range(1, MOST_PROCESSES + 1)))
"""Of jobs."""


def queue_for(stage: Stage, spec: JobSpec) -> str:
    """Only `train` needs GPUs, and only if the spec does not keep it on the CPU."""
    on_cpu = spec.resources.gpus == 0 or spec.training.use_cpu
    if stage is Stage.TRAIN and not on_cpu:
        return gpu_queue(spec.resources.gpus or 1)
    return CPU_QUEUE


def gpus_of(queue: str) -> int:
    """How many GPUs a job that waits in this queue takes, where the worker has some."""
    if queue == GPU_QUEUE:
        return 1
    count = queue.removeprefix(f"{GPU_QUEUE}.")
    return int(count) if count.isdecimal() else 0


def consumed_queues(queues: Iterable[str], gpus: int) -> list[str]:
    """The queues that a worker for `queues` with `gpus` GPUs consumes: `gpu` includes those of jobs
    for several GPUs, as far as it has enough."""
    more = [gpu_queue(count) for count in range(2, min(gpus, MOST_PROCESSES) + 1)]
    named = list(queues)
    return list(dict.fromkeys([*named, *(more if GPU_QUEUE in named else [])]))


def usable_gpus(devices: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """Those of a worker's registered devices that a job can have: the others have a `problem`."""
    gpus = (device for device in devices if device["type"] == "cuda")
    return [gpu for gpu in gpus if gpu.get("uuid") and not gpu.get("problem")]


def most_for_one_job(devices: Iterable[Mapping[str, Any]]) -> int:
    """How many of a worker's GPUs one job can have. A process that sees a MIG instance sees no
    other GPU, so MIG instances are for jobs of one GPU."""
    usable = usable_gpus(devices)
    whole = sum(not gpu.get("mig") for gpu in usable)
    return whole or min(len(usable), 1)
