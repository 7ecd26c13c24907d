"""FSDP: each process holds a shard of every weight, of its gradient and of the optimizer state.

This calls torch's `fully_shard` directly, because Accelerate supports FSDP on GPUs only: the same
code runs on GPUs and, over gloo, on CPUs.
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import timedelta
from functools import partial
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.utils import InitProcessGroupKwargs
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor, distribute_tensor

from service.contract.spec.fsdp import FSDPSpec, MixedPrecisionPolicySpec
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from worker.training.distributed import fsdp_wrapping, full_copies
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.shared_weights import read_once
from worker.training.distributed.strategy import BuildOptimizer, Load, Strategy, finite
from worker.training.fast_paths import FastPaths

_IN_HALVES: Final = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}


class FSDPStrategy(Strategy):
    """A weight that no process has used in a step gets a gradient of zeros, because all processes
    must reduce the same gradients. Weight decay then applies to it, unlike in a single process."""

    forward_is_collective = True

    def __init__(
        self,
        accelerator: Accelerator,
        model: torch.nn.Module,
        build_optimizer: BuildOptimizer,
        spec: JobSpec,
        ranks: Ranks,
    ) -> None:
        self._options = _options(spec)
        self._accelerator = accelerator
        self._ranks = ranks
        self._shape = full_copies.with_weights(model, {})
        self._bytes = sum(each.nbytes for each in model.parameters())
        # Not moved to the device, which the whole model may not fit, and not wrapped in DDP.
        self.model: Any = accelerator.prepare_model(
            model, device_placement=False, evaluation_mode=True
        )
        self._groups = self._shard()
        self.optimizer: Any = accelerator.prepare_optimizer(
            build_optimizer(self.model), device_placement=False
        )

    @staticmethod
    def accelerator_arguments(spec: JobSpec) -> dict[str, Any]:
        options = _options(spec)
        # Gradients of weights that are offloaded to the CPU are reduced there.
        backend = "cpu:gloo,cuda:nccl" if options.cpu_offload else None
        waiting = timedelta(seconds=options.timeout)
        return {"kwargs_handlers": [InitProcessGroupKwargs(backend=backend, timeout=waiting)]}

    def _shard(self) -> int:
        """Shard each block, and the rest of the model; returns the number of groups."""
        options = self._options
        mesh = init_device_mesh(self._accelerator.device.type, (self._ranks.world_size,))
        offload = offloading(options)
        blocks = fsdp_wrapping.blocks(self.model, options)
        for block in blocks:
            fully_shard(
                block,
                mesh=mesh,
                reshard_after_forward=options.reshard_after_forward,
                mp_policy=precision(options, None),
                offload_policy=offload,
            )
        fully_shard(
            self.model,
            mesh=mesh,
            # The backward pass needs these weights first: do not free them in between.
            reshard_after_forward=False,
            mp_policy=precision(options, torch.float32),
            offload_policy=offload,
        )
        self.model.set_reduce_scatter_unused_params(True)
        if hasattr(self.model, "generate"):  # it runs parts of the model outside `forward`
            register_fsdp_forward_method(self.model, "generate")
            # A forward pass needs all processes, so all generate until the longest text is done.
            together = self._ranks.world_size > 1
            self.model.generate = partial(self.model.generate, synced_gpus=together)
        return len(blocks) + 1

    def notices(self) -> list[Notice]:
        own = sum(_local(value).nbytes for value in self._parameters().values())
        policy = self._options.mixed_precision_policy
        halves = policy.param_dtype if policy is not None else None
        notice = Notice(
            message=f"FSDP: the weights are in {self._groups} groups, spread over "
            f"{self._ranks.world_size} processes; this one holds {own:,} of {self._bytes:,} bytes"
            + (f", and gathers them as {halves}" if halves else ""),
            data={"groups": self._groups, "own_bytes": own, "bytes": self._bytes, "dtype": halves},
        )
        return [notice]

    @contextmanager
    def accumulate(self, *, last: bool) -> Iterator[None]:
        self.model.set_requires_gradient_sync(last or self._options.sync_each_batch)
        yield

    def backward(self, loss: torch.Tensor) -> None:
        self._accelerator.backward(loss)

    def step(self, max_norm: float) -> torch.Tensor:
        norm = self._accelerator.clip_grad_norm_(self.model.parameters(), max_norm)
        self.optimizer.step()
        self.optimizer.zero_grad()
        whole: torch.Tensor = norm.full_tensor() if isinstance(norm, DTensor) else norm
        return whole.to(self._accelerator.device)

    def has_finite_weights(self) -> bool:
        parameters = self._parameters().values()
        return finite([_local(value) for value in parameters if value.requires_grad])

    @contextmanager
    def full_model(self) -> Iterator[Any]:
        """A copy in the first process's memory, not on its device."""
        first = self._ranks.is_main_process
        weights = {}
        for name, value in self._parameters().items():
            full = _full(value)
            if first:
                weights[name] = full
        yield self._copy(weights) if first else None

    def load_weights(self, load: Load, *, trained_only: bool) -> None:
        own = {
            name: value
            for name, value in self._parameters().items()
            if value.requires_grad or not trained_only
        }

        def read() -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
            empty = {n: torch.empty(value.shape, dtype=value.dtype) for n, value in own.items()}
            copy = self._copy(empty)
            load(copy)
            return {name: copy.get_parameter(name) for name in own}, dict(copy.named_buffers())

        weights, buffers = read_once(read, self._ranks)
        with torch.no_grad():
            for name, value in weights.items():
                _local(own[name]).copy_(_local(_like(own[name], value.detach())))
            for name, buffer in self.model.named_buffers():
                buffer.copy_(buffers[name])

    def optimizer_state(self) -> dict[str, Any]:
        self._reshard()
        state = self.optimizer.state_dict()
        # All processes gather in the same order, one tensor at a time; only the first keeps them.
        gathered = {
            index: {name: _full(value) for name, value in sorted(values.items())}
            for index, values in sorted(state["state"].items())
        }
        return {**state, "state": gathered} if self._ranks.is_main_process else {}

    def load_optimizer_state(self, state: dict[str, Any]) -> None:
        self._reshard()
        groups = self.optimizer.param_groups
        parameters = [value for group in groups for value in group["params"]]
        split = {
            index: {name: _like(parameters[index], value) for name, value in values.items()}
            for index, values in state["state"].items()
        }
        self.optimizer.load_state_dict({**state, "state": split})

    def _parameters(self) -> dict[str, torch.Tensor]:
        """The shards of this process, by the model's names."""
        self._reshard()
        return dict(self.model.named_parameters())

    def _reshard(self) -> None:
        """After a forward pass without a backward pass some weights are still gathered."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _copy(self, weights: Mapping[str, torch.Tensor]) -> Any:
        """The unsharded model with these weights and the current buffers."""
        return full_copies.filled(self._shape, weights, self.model)


def _options(spec: JobSpec) -> FSDPSpec:
    options = spec.resources.chosen_strategy
    assert isinstance(options, FSDPSpec), "the registry chose this strategy for it"
    return options


def in_job_precision(spec: JobSpec, device: torch.device, paths: FastPaths) -> JobSpec:
    """`spec` with a dtype to gather weights in, unless the job gives one.

    Weights gathered as float32 would be cast by autocast, which keeps the copies of all blocks for
    the backward pass: half a model more on each GPU, and twice the bytes sent. Weights gathered as
    bfloat16 are what autocast would compute. `spec` is unchanged on a CPU, and in a training that
    began on one.
    """
    options = spec.resources.chosen_strategy
    if not isinstance(options, FSDPSpec) or options.mixed_precision_policy is not None:
        return spec
    halves = device.type == "cuda" and spec.training.bf16
    chosen = paths.choose("fsdp_precision", lambda: _IN_HALVES if halves else None)
    if chosen is None:
        return spec
    policy = MixedPrecisionPolicySpec.model_validate(chosen)
    strategy = options.model_copy(update={"mixed_precision_policy": policy})
    resources = spec.resources.model_copy(update={"strategy": strategy})
    return spec.model_copy(update={"resources": resources})


def offloading(options: FSDPSpec) -> OffloadPolicy:
    return CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy()


def precision(options: FSDPSpec, output: torch.dtype | None) -> MixedPrecisionPolicy:
    """`output`: the dtype of a module's output, if the options change any dtype. The model's own
    output is float32, as under autocast, because losses are computed from it."""
    policy = options.mixed_precision_policy
    if policy is None:
        return MixedPrecisionPolicy()
    dtypes = {name: getattr(torch, dtype) for name, dtype in policy if dtype is not None}
    return MixedPrecisionPolicy(**dtypes, output_dtype=output)


def _local(value: torch.Tensor) -> torch.Tensor:
    if isinstance(value, DTensor):
        value = value.to_local()
    return value.detach()


def _full(value: Any) -> Any:
    """A copy on the CPU; all processes must call this."""
    if isinstance(value, DTensor):
        value = value.full_tensor().detach()
    # Copied even on a CPU: it may be a view of a larger tensor, which safetensors rejects.
    return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _like(parameter: torch.Tensor, value: Any) -> Any:
    """`value` sharded like `parameter`, if it has the same shape."""
    fits = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    if not (fits and isinstance(parameter, DTensor)):
        return value
    # Each process takes its shard from its own copy: nothing is sent.
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None)
