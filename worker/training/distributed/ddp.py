"""Each process holds the whole model: one alone, or several whose gradients DDP averages."""

from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import DistributedDataParallelKwargs, InitProcessGroupKwargs

from service.contract.spec.spec import JobSpec
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.strategy import BuildOptimizer, Load, Strategy


class DDPStrategy(Strategy):
    states_are_copies = False

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        build_optimizer: BuildOptimizer,
        _spec: JobSpec,
        ranks: Ranks,
    ) -> None:
        self._accelerator = accelerator
        self._ranks = ranks
        self.model, self.optimizer = accelerator.prepare(model, build_optimizer(model))

    @staticmethod
    def accelerator_arguments(spec: JobSpec) -> dict[str, Any]:
        """None for a single process."""
        if spec.resources.processes == 1:
            return {}
        options = spec.resources.chosen_strategy.model_dump(exclude={"type"})
        waiting = InitProcessGroupKwargs(timeout=timedelta(seconds=options.pop("timeout")))
        if options["find_unused_parameters"] is None:
            # As in Trainer: weights without a gradient are common, but the search does not work
            # with checkpointed layers, which are computed again in the backward pass.
            options["find_unused_parameters"] = not spec.training.activation_checkpointing
        return {"kwargs_handlers": [waiting, DistributedDataParallelKwargs(**options)]}

    @property
    def bare_model(self) -> Any:
        return self._accelerator.unwrap_model(self.model, keep_torch_compile=False)

    def accumulate(self, *, last: bool) -> AbstractContextManager[None]:
        context: AbstractContextManager[None] = self._accelerator.no_sync(self.model)
        return nullcontext() if last else context

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def step(self, max_norm: float) -> torch.Tensor:
        norm: torch.Tensor = self._accelerator.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        return norm

    @contextmanager
    def full_model(self) -> Iterator[Any]:
        yield self.bare_model if self._ranks.is_main_process else None

    def load_weights(self, load: Load, *, trained_only: bool) -> None:  # noqa: ARG002
        load(self.bare_model)

    def optimizer_state(self) -> dict[str, Any]:
        state: dict[str, Any] = self.optimizer.state_dict() if self._ranks.is_main_process else {}
        return state

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        optimizer = self.optimizer
        optimizer.load_state_dict(state)
        # torch casts a loaded state to the dtype of its parameter: Adafactor's float32 statistics
        # of bfloat16 weights would lose digits.
        parameters = [value for group in optimizer.param_groups for value in group["params"]]
        for index, values in state["state"].items():
            current = optimizer.state[parameters[index]]
            for name, value in values.items():
                if isinstance(value, torch.Tensor) and current[name].dtype != value.dtype:
                    current[name] = value.to(current[name].device)
