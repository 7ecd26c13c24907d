"""How the processes of a training hold its model and its optimizer together."""

from collections.abc import Callable
from contextlib import AbstractContextManager
from typing import Any, Protocol

import torch

from service.contract.events import Notice

BuildOptimizer = Callable[[torch.nn.Module], torch.optim.Optimizer]
Load = Callable[[torch.nn.Module], None]


class Strategy(Protocol):
    """Every call is made by all processes, in the same order. One alone holds everything."""

    model: Any
    """What the training calls."""
    optimizer: Any

    evaluates_together: bool
    """No process can run the model without the others."""
    gives_copies: bool
    """What `whole` and `optimizer_state` give is a copy, which later steps do not reach."""

    @property
    def bare_model(self) -> Any:
        """The model without a wrapping: its names are those of the files."""

    def notices(self) -> list[Notice]:
        """What there is to say of how the model is held."""

    def accumulating(self, *, last: bool) -> AbstractContextManager[None]:
        """Around the forward and backward pass of a part of an accumulated batch. After the `last`
        one the gradients are the mean of those of all processes."""

    def backward(self, loss: torch.Tensor) -> None: ...

    def step(self, max_norm: float) -> torch.Tensor:
        """Clip the gradients to `max_norm`, update, and forget them; their norm before clipping,
        a scalar on the device."""

    def holds_finite_weights(self) -> bool:
        """Whether what trains is finite, as far as this process holds it."""

    def whole(self) -> AbstractContextManager[Any]:
        """The bare model with all of its weights for the first process, None for the others.

        It may be a copy: what is done to it need not reach the training.
        """

    def fill(self, load: Load, *, trained_only: bool) -> None:
        """Take over what `load` puts into a model of the same shape that it is given; with
        `trained_only` only the weights that train, and the buffers."""

    def optimizer_state(self) -> dict[str, Any]:
        """As of one process that holds everything, for the first; that of others is of no use."""

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        """What `optimizer_state` gave, given to all of them. Raises whatever does not fit."""


def finite(tensors: list[torch.Tensor]) -> bool:
    """Waits for the device once."""
    return not tensors or bool(torch.stack([each.isfinite().all() for each in tensors]).all())
