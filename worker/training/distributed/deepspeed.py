"""DeepSpeed's ZeRO, stages 1 and 2: each process holds all weights, and the optimizer state of its
part of them; with stage 2 also the gradients of that part.

The optimizer is torch's, gradients are clipped to `training.max_grad_norm`, and `bf16` is autocast
over float32 weights: DeepSpeed only decides which process updates which weights.
"""

import importlib.util
import logging
import math
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import timedelta
from typing import Any

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs

from service.contract.spec.deepspeed import DeepSpeedSpec
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from worker.failures import invalid_option
from worker.training.distributed import full_copies
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.strategy import BuildOptimizer, Load, Strategy


class DeepSpeedStrategy(Strategy):
    """A weight that no process has used in a step gets a gradient of zeros, as with `fsdp`. All
    processes must use the same weights in a step: DeepSpeed reduces gradients in the order in which
    they are computed."""

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        build_optimizer: BuildOptimizer,
        spec: JobSpec,
        ranks: Ranks,
    ) -> None:
        _require_float32(model)
        self._device = accelerator.device
        self._stage = _options(spec).zero_stage
        self._ranks = ranks
        self._shape = full_copies.with_weights(model, {})
        # Only for the device and autocast; the model is not wrapped in DDP.
        self.model: Any = accelerator.prepare_model(model, evaluation_mode=True)
        self.optimizer: Any = build_optimizer(self.model)
        # DeepSpeed replaces each group's weights by a flat one, and removes empty groups.
        self._groups = [list(group["params"]) for group in self.optimizer.param_groups]
        self._engine = _package(self._device).initialize(
            model=self.model, optimizer=self.optimizer, config=configuration(spec)
        )[0]

    @staticmethod
    def accelerator_arguments(spec: JobSpec) -> dict[str, Any]:
        if importlib.util.find_spec("deepspeed") is None:
            raise invalid_option(
                "resources.strategy",
                "is `deepspeed`, which needs a package that this worker does not have: "
                "pip install 'finetune-service[deepspeed]'",
            )
        waiting = timedelta(seconds=_options(spec).timeout)
        return {"kwargs_handlers": [InitProcessGroupKwargs(timeout=waiting)]}

    @property
    def _zero(self) -> Any:
        """DeepSpeed's optimizer around ours."""
        return self._engine.optimizer

    @property
    def _flat(self) -> list[torch.Tensor]:
        """The weights that this process updates, by group."""
        parts: list[torch.Tensor] = self._zero.single_partition_of_fp32_groups
        return parts

    def notices(self) -> list[Notice]:
        own = sum(part.numel() for part in self._flat)
        count = sum(value.numel() for group in self._groups for value in group)
        notice = Notice(
            message=f"DeepSpeed: ZeRO stage {self._stage} over {self._ranks.world_size} processes; "
            f"this one updates {own:,} of {count:,} weights",
            data={"zero_stage": self._stage, "own_weights": own, "weights": count},
        )
        return [notice]

    @contextmanager
    def accumulate(self, *, last: bool) -> Iterator[None]:
        self._engine.set_gradient_accumulation_boundary(last)
        yield

    def backward(self, loss: torch.Tensor) -> None:
        # DeepSpeed does this when its wrapper of the model is called. It would not notice a loss
        # that is computed from the head's weight instead of the model's outputs.
        self._zero.clear_backward_seen_flag()
        self._engine._backward_prologue()
        self._engine.backward(loss, scale_wrt_gas=False)

    def step(self, max_norm: float) -> torch.Tensor:
        self._zero.clip_grad = 0.0 if math.isinf(max_norm) else max_norm
        self._engine.step()
        # DeepSpeed skips a step whose gradients are not finite.
        norm = torch.inf if self._zero.overflow else self._zero._global_grad_norm
        return torch.as_tensor(norm, dtype=torch.float32).to(self._device)

    @contextmanager
    def full_model(self) -> Iterator[Any]:
        """A copy in the first process's memory: the weights are views of one flat tensor."""
        if not self._ranks.is_main_process:
            yield None
            return
        weights = {
            name: value.detach().to("cpu", copy=True)
            for name, value in self.model.named_parameters()
        }
        yield full_copies.filled(self._shape, weights, self.model)

    def load_weights(self, load: Load, *, trained_only: bool) -> None:
        own = {
            name: value
            for name, value in self.model.named_parameters()
            if value.requires_grad or not trained_only
        }
        empty = {name: torch.empty(value.shape, dtype=value.dtype) for name, value in own.items()}
        # Into a copy: safetensors refuses weights that are views of one tensor.
        loaded = full_copies.filled(self._shape, empty, self.model)
        load(loaded)
        with torch.no_grad():
            for name, value in own.items():
                value.copy_(empty[name])
            for name, buffer in self.model.named_buffers():
                buffer.copy_(loaded.get_buffer(name))
        self._zero.refresh_fp32_params()

    def optimizer_state(self) -> dict[str, Any]:
        """Gathered weight by weight, in the same order everywhere."""
        live, parts = iter(self.optimizer.param_groups), iter(self._flat)
        options = _without_params(self.optimizer.param_groups[0])
        state, groups, index = {}, [], 0
        for parameters in self._groups:
            if parameters:
                options, part = _without_params(next(live)), next(parts)
                for number, parameter in enumerate(parameters, start=index):
                    values = {
                        name: self._gathered(parameter, value, part)
                        for name, value in sorted(self.optimizer.state[part].items())
                    }
                    if values:
                        state[number] = values
            groups.append({**options, "params": list(range(index, index + len(parameters)))})
            index += len(parameters)
        return {"state": state, "param_groups": groups} if self._ranks.is_main_process else {}

    def _gathered(self, parameter: Any, value: Any, part: torch.Tensor) -> Any:
        """The whole of a value of the optimizer's state; this process has a part of it."""
        if not isinstance(value, torch.Tensor):
            return value
        if value.shape != part.shape:
            return value.clone()
        whole = torch.zeros(parameter.numel(), dtype=value.dtype)
        _own_part(parameter, whole, value, lambda own, held: own.copy_(held))
        # Exactly one process holds each number; summing integers keeps its bits unchanged.
        torch.distributed.all_reduce(whole.view(torch.int32), group=self._ranks.group)
        return whole.view(parameter.shape)

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        flat: dict[int, dict[str, Any]] = {}
        groups = []
        given = [group for group in state["param_groups"] if group["params"]]
        held = [parameters for parameters in self._groups if parameters]
        for number, (group, parameters) in enumerate(zip(given, held, strict=True)):
            groups.append({**group, "params": [number]})
            saved = [state["state"].get(index) for index in group["params"]]
            if any(saved):
                flat[number] = _flattened(parameters, saved, self._flat[number])
        self.optimizer.load_state_dict({"state": flat, "param_groups": groups})
        # DeepSpeed still has views of the old tensors.
        self._zero._hp_optimizer_states_linked = False


def configuration(spec: JobSpec) -> dict[str, Any]:
    """DeepSpeed's configuration from the job's options."""
    options = _options(spec)
    named = options.model_dump(
        exclude={"type", "timeout", "zero_stage", "offload_optimizer_device"}
    )
    offload = {"device": options.offload_optimizer_device}
    return {
        "train_micro_batch_size_per_gpu": spec.training.per_device_train_batch_size,
        "gradient_accumulation_steps": spec.training.gradient_accumulation_steps,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "zero_optimization": {"stage": options.zero_stage, "offload_optimizer": offload, **named},
    }


def _options(spec: JobSpec) -> DeepSpeedSpec:
    options = spec.resources.chosen_strategy
    assert isinstance(options, DeepSpeedSpec), "the registry chose this strategy for it"
    return options


def _package(device: torch.device) -> Any:
    """Imported only for jobs that use it, as the import takes ten seconds and more."""
    if device.type == "cpu":  # otherwise it would choose a GPU that the job does not use
        os.environ["DS_ACCELERATOR"] = "cpu"
    import deepspeed

    logging.getLogger("DeepSpeed").setLevel(logging.WARNING)
    # Do not compile an operation for processes on one CPU: gloo is good enough there.
    sys.modules["deepspeed.comm.torch"].__dict__["build_shm_op"] = lambda: None
    return deepspeed


def _require_float32(model: torch.nn.Module) -> None:
    other = {str(value.dtype) for value in model.parameters()} - {"torch.float32"}
    if other:
        found = ", ".join(sorted(name.removeprefix("torch.") for name in other))
        raise invalid_option(
            "model.dtype", f"must be `float32` for `deepspeed`, but the model's weights are {found}"
        )


def _own_part(parameter: Any, whole: torch.Tensor, flat: torch.Tensor, do: Any) -> None:
    """Call `do(part of whole, part of flat)` if this process holds a part of `parameter`. `whole`
    is as long as the parameter, `flat` as this process's part of the parameter's group."""
    piece = parameter._hp_mapping
    if piece is not None:
        own, held = piece.lp_fragment_address, piece.hp_fragment_address
        do(whole.narrow(0, own.start, own.numel), flat.narrow(0, held.start, held.numel))


def _flattened(
    parameters: list[Any], saved: list[dict[str, Any] | None], part: torch.Tensor
) -> dict[str, Any]:
    """This process's part of the optimizer state, from the state of all parameters of a group.

    ValueError if a parameter has no state.
    """
    if not all(saved):
        raise ValueError("the optimizer's state of some weights is missing")
    values: dict[str, Any] = {}
    for name, value in (saved[0] or {}).items():
        values[name] = value
        if isinstance(value, torch.Tensor) and value.shape == parameters[0].shape != ():
            values[name] = torch.zeros_like(part)
            for parameter, state in zip(parameters, saved, strict=True):
                assert state is not None
                whole = state[name].reshape(-1).to(part.device)
                _own_part(parameter, whole, values[name], lambda own, held: held.copy_(own))
    return values


def _without_params(group: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in group.items() if name != "params"}
