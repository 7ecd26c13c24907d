"""Batches from features, made in this process or in others ahead of time."""

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final

import torch
from torch.utils.data import DataLoader

from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec
from service.prctl import die_with_parent
from worker.training.objective import Batch, Collate, Features, at_epoch

_WORKERS_ON_GPU: Final = 2
"""Of each process: one makes a batch while the other's is on its way."""
_EVALUATED_FOR_TRAINED: Final = 4
"""Examples evaluated at once for each trained at once: no activations are kept for gradients, and
where it is too much the evaluation takes halves."""

Address = tuple[int, int]
"""(epoch, index of a feature): workers that stay must be told the epoch with each batch."""


class _Addressed:
    """Features by their addresses, as a data set of torch's."""

    def __init__(self, features: Features) -> None:
        self._features = features

    def __len__(self) -> int:
        return len(self._features)

    def __getitems__(self, addresses: list[Address]) -> list[Mapping[str, Any]]:
        """One batch; all of its addresses are of one epoch."""
        features: Any = at_epoch(self._features, addresses[0][0])
        indices = [index for _epoch, index in addresses]
        if hasattr(features, "__getitems__"):  # Arrow reads them at once
            rows: list[Mapping[str, Any]] = features.__getitems__(indices)
            return rows
        return [features[index] for index in indices]


class _Batches:
    """The addresses that the loader's next round goes through."""

    def __init__(self) -> None:
        self.planned: list[list[Address]] = []

    def __iter__(self) -> Iterator[list[Address]]:
        return iter(self.planned)

    def __len__(self) -> int:
        return len(self.planned)


class Loader:
    """Collated batches on the CPU. One for all epochs, so that its workers can stay."""

    def __init__(
        self, features: Features, collate: Collate, spec: TrainingSpec, *, keep_workers: bool = True
    ) -> None:
        self._batches = _Batches()
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
            _Addressed(features),  # type: ignore[arg-type]  # it is one by its methods
            batch_sampler=self._batches,
            collate_fn=collate,
            num_workers=spec.dataloader_num_workers or 0,
            pin_memory=spec.dataloader_pin_memory and torch.cuda.is_available(),
            # Its own, because the iterator draws a seed: from the default one it would disturb
            # dropout.
            generator=torch.Generator(),
            **workers,
        )

    def over(self, batches: Sequence[list[int]], epoch: int = 0) -> Iterator[Batch]:
        """One collated batch for each list of indices. Ends an earlier round that was left."""
        self._batches.planned = [[(epoch, index) for index in batch] for batch in batches]
        return iter(self._loader)


def for_device(spec: JobSpec, *, on_gpu: bool) -> JobSpec:
    """`spec` with what it leaves to the device that is trained or evaluated on. The batches are the
    same however many processes make them."""
    training, workers = spec.training, spec.training.dataloader_num_workers
    size = training.eval_batch_size
    can_halve = spec.resources.chosen_strategy.type != "fsdp"
    if on_gpu and can_halve and training.per_device_eval_batch_size is None:
        size = max(size, _EVALUATED_FOR_TRAINED * training.per_device_train_batch_size)
    if workers is None:
        workers = _WORKERS_ON_GPU if on_gpu else 0
    changes = {
        "dataloader_num_workers": workers,
        "per_device_eval_batch_size": size,
        # Pinning would start CUDA in a job of the CPU's, where the machine has a GPU.
        "dataloader_pin_memory": training.dataloader_pin_memory and on_gpu,
    }
    return spec.model_copy(update={"training": training.model_copy(update=changes)})


def chunks(indices: Sequence[int], size: int) -> list[list[int]]:
    return [list(indices[start : start + size]) for start in range(0, len(indices), size)]
