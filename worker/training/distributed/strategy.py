"""The interface of DDP, FSDP and DeepSpeed: how the processes hold the model and the optimizer."""

from abc import ABC, abstractmethod
from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any

import torch
from accelerate import Accelerator

from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from worker.training.distributed.ranks import Ranks

BuildOptimizer = Callable[[torch.nn.Module], torch.optim.Optimizer]
Load = Callable[[torch.nn.Module], None]


class Strategy(ABC):
    """All processes must make the same calls in the same order."""

    model: Any
    """The wrapped model, which the training calls."""
    optimizer: Any

    forward_is_collective = False
    """Whether all processes must take part in a forward pass."""
    states_are_copies = True
    """Whether `full_model` and `optimizer_state` return copies, which later steps do not change."""

    @abstractmethod
    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        build_optimizer: BuildOptimizer,
        spec: JobSpec,
        ranks: Ranks,
    ) -> None:
        """StageError(invalid_option) if the options do not fit the model."""

    @staticmethod
    @abstractmethod
    def accelerator_arguments(spec: JobSpec) -> dict[str, Any]:
        """Arguments of `Accelerator`. StageError(invalid_option) if the package that the strategy
        needs is missing."""

    @property
    def bare_model(self) -> Any:
        """The model without wrappers: its weights have the names of the files."""
        return self.model

    def notices(self) -> list[Notice]:
        """Events about how the model is sharded."""
        return []

    @abstractmethod
    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:
        """Context for the forward and backward pass of a micro-batch. After the `last` one the
        gradients are the mean over all processes."""

    @abstractmethod
    def backward(self, loss: torch.Tensor) -> None: ...

    @abstractmethod
    def step(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients to `max_norm`, update the weights, and reset the gradients. Returns
        the norm before clipping, a scalar on the device."""

    def has_finite_weights(self) -> bool:
        """Whether the trained weights that this process holds are finite."""
        return finite([value for value in self.model.parameters() if value.requires_grad])

    @abstractmethod
    def full_model(self) -> AbstractContextManager[Any]:
        """The bare model with all of its weights in the first process, None in the others.

        It may be a copy: changing it need not change the training.
        """

    @abstractmethod
    def load_weights(self, load: Load, *, trained_only: bool) -> None:
        """Take the weights that `load` writes into a model of the same shape; with `trained_only`
        only the trained weights and the buffers."""

    @abstractmethod
    def optimizer_state(self) -> dict[str, Any]:
        """The full state in the first process, as of a single process; unusable in the others."""

    @abstractmethod
    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """Load a state of `optimizer_state`; all processes get the same. Raises if it does not
        fit."""


def finite(tensors: list[torch.Tensor]) -> bool:
    """Whether all numbers are finite; syncs with the device once."""
    return not tensors or bool(torch.stack([each.isfinite().all() for each in tensors]).all())
