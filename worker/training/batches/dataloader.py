"""Loading batches of features, in this process or ahead of time in worker processes."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.system.prctl import die_with_parent
from worker.training.objective import Batch, Collate, Features, at_epoch

_WORKERS_ON_GPU: Final = 2
"""Loader workers of each process: one makes a batch while the other's is transferred."""
_EVAL_BATCH_FACTOR: Final = 4
"""Evaluation batches are this many times larger than training batches: no activations are kept for
gradients, and an evaluation that runs out of memory halves its batches."""

Address = tuple[int, int]
"""(epoch, index of a feature): persistent workers learn the epoch with each batch."""


class _Addressed:
    """Features by their addresses, as a torch Dataset."""

    def __init__(self, features: Features) -> None:
        self._features = features

    def __len__(self) -> int:
        return len(self._features)

    def __getitems__(self, addresses: list[Address]) -> list[Mapping[str, Any]]:
        """One batch; all of its addresses are from one epoch."""
        features: Any = at_epoch(self._features, addresses[0][0])
        indices = [index for _epoch, index in addresses]
        if hasattr(features, "__getitems__"):  # Arrow reads them all at once
            rows: list[Mapping[str, Any]] = features.__getitems__(indices)
            return rows
        return [features[index] for index in indices]


class Loader:
    """Collated batches on the CPU. One loader serves all epochs, so that its workers persist."""

    def __init__(
        self, features: Features, collate: Collate, spec: TrainingSpec, *, keep_workers: bool = True
    ) -> None:
        self._planned: list[list[Address]] = []
        """The batches of the loader's next pass."""
        workers: dict[str, Any] = {}
        if spec.dataloader_num_workers:
            trainer = os.getpid()
            workers = {
                "persistent_workers": keep_workers and spec.dataloader_persistent_workers,
                "prefetch_factor": spec.dataloader_prefetch_factor,
                # They share the memory-mapped data, and never touch the GPU.
                "multiprocessing_context": "fork",
                "worker_init_fn": lambda _number: die_with_parent(trainer),
            }
        self._loader: DataLoader[Batch] = DataLoader(
            _Addressed(features),  # type: ignore[arg-type]  # it has a Dataset's methods
            batch_sampler=self._planned,
            collate_fn=collate,
            num_workers=spec.dataloader_num_workers or 0,
            pin_memory=spec.dataloader_pin_memory and torch.cuda.is_available(),
            # The iterator draws a seed: from the default generator it would change dropout.
            generator=torch.Generator(),
            **workers,
        )

    def over(self, batches: Sequence[list[int]], epoch: int = 0) -> Iterator[Batch]:
        """One collated batch for each list of indices. Ends an earlier pass that is unfinished."""
        self._planned[:] = [[(epoch, index) for index in batch] for batch in batches]
        return iter(self._loader)


def for_device(spec: JobSpec, *, on_gpu: bool) -> JobSpec:
    """`spec` with the loader options that depend on the device, where the job does not give them.
    The number of loader workers does not change the batches."""
    training, workers = spec.training, spec.training.dataloader_num_workers
    size = training.eval_batch_size
    can_halve = spec.resources.chosen_strategy.type != "fsdp"
    if on_gpu and can_halve and training.per_device_eval_batch_size is None:
        size = max(size, _EVAL_BATCH_FACTOR * training.per_device_train_batch_size)
    if workers is None:
        workers = _WORKERS_ON_GPU if on_gpu else 0
    changes = {
        "dataloader_num_workers": workers,
        "per_device_eval_batch_size": size,
        # On a machine with a GPU, pinning would start CUDA even in a job on the CPU.
        "dataloader_pin_memory": training.dataloader_pin_memory and on_gpu,
    }
    return spec.model_copy(update={"training": training.model_copy(update=changes)})


def chunks(indices: Sequence[int], size: int) -> list[list[int]]:
    return [list(indices[start : start + size]) for start in range(0, len(indices), size)]
