"""FSDP: each process holds a part of every weight, of its gradient and of the optimizer's state.

By torch's `fully_shard` itself, because Accelerate has it on GPUs alone: the same code runs on GPUs
and, over gloo, on CPUs.
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

from service.contract.events import Notice
from service.contract.fsdp import FSDPSpec, MixedPrecisionPolicySpec
from service.contract.spec import JobSpec
from worker.training.distributed import fsdp_wrapping, full_copies
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.shared_weights import read_once
from worker.training.distributed.strategy import BuildOptimizer, Load, finite
from worker.training.fast_paths import FastPaths

_IN_HALVES: Final = {"param_dtype": "bfloat16", "reduce_dtype": "float32"}


class Shards:
    """Implements `Strategy`.

    A weight that no process has used in a step gets a gradient of zeros, where one process would
    leave it out: the processes must reduce the same gradients. Weight decay then reaches it.
    """

    evaluates_together = True
    gives_copies = True

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
        # Neither moved to the device as a whole, which it need not fit, nor wrapped in DDP.
        self.model: Any = accelerator.prepare_model(
            model, device_placement=False, evaluation_mode=True
        )
        self._groups = self._shard()
        self.optimizer: Any = accelerator.prepare_optimizer(
            build_optimizer(self.model), device_placement=False
        )

    @staticmethod
    def arguments(spec: JobSpec) -> dict[str, Any]:
        """Of `Accelerator`."""
        options = _options(spec)
        # Weights that wait on the CPU are summed up there.
        backend = "cpu:gloo,cuda:nccl" if options.cpu_offload else None
        waiting = timedelta(seconds=options.timeout)
        return {"kwargs_handlers": [InitProcessGroupKwargs(backend=backend, timeout=waiting)]}

    def _shard(self) -> int:
        """Split the weights of each block, and what is left of the model; how many groups."""
        options = self._options
        mesh = init_device_mesh(self._accelerator.device.type, (self._ranks.count,))
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
            # The first that the backward pass needs: not worth freeing in between.
            reshard_after_forward=False,
            mp_policy=precision(options, torch.float32),
            offload_policy=offload,
        )
        self.model.set_reduce_scatter_unused_params(True)
        if hasattr(self.model, "generate"):  # runs parts of the model outside its forward
            register_fsdp_forward_method(self.model, "generate")
            # Each process generates other texts, until the longest of them is there: a forward
            # pass needs all processes.
            together = self._ranks.count > 1
            self.model.generate = partial(self.model.generate, synced_gpus=together)
        return len(blocks) + 1

    @property
    def bare_model(self) -> Any:
        return self.model

    def notices(self) -> list[Notice]:
        own = sum(_local(value).nbytes for value in self._parameters().values())
        policy = self._options.mixed_precision_policy
        halves = policy.param_dtype if policy is not None else None
        notice = Notice(
            message=f"FSDP: the weights are in {self._groups} groups, spread over "
            f"{self._ranks.count} processes; this one holds {own:,} of {self._bytes:,} bytes"
            + (f", and gathers them as {halves}" if halves else ""),
            data={"groups": self._groups, "own_bytes": own, "bytes": self._bytes, "dtype": halves},
        )
        return [notice]

    @contextmanager
    def accumulating(self, *, last: bool) -> Iterator[None]:
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

    def holds_finite_weights(self) -> bool:
        parameters = self._parameters().values()
        return finite([_local(value) for value in parameters if value.requires_grad])

    @contextmanager
    def whole(self) -> Iterator[Any]:
        """A copy in the first process's memory, not on its device."""
        first = self._ranks.is_first
        weights = {}
        for name, value in self._parameters().items():
            full = _full(value)
            if first:
                weights[name] = full
        yield self._copy(weights) if first else None

    def fill(self, load: Load, *, trained_only: bool) -> None:
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
        # Gathered one by one in the same order everywhere, and kept by the first process only.
        gathered = {
            index: {name: _full(value) for name, value in sorted(values.items())}
            for index, values in sorted(state["state"].items())
        }
        return {**state, "state": gathered} if self._ranks.is_first else {}

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
        """The parts that this process holds, by the model's names."""
        self._reshard()
        return dict(self.model.named_parameters())

    def _reshard(self) -> None:
        """After a forward pass without a backward one some weights are still whole."""
        for module in self.model.modules():
            if isinstance(module, FSDPModule):
                module.reshard()

    def _copy(self, weights: Mapping[str, torch.Tensor]) -> Any:
        """The model as it was before it was split, with these weights and the present buffers."""
        return full_copies.filled(self._shape, weights, self.model)


def _options(spec: JobSpec) -> FSDPSpec:
    options = spec.resources.chosen_strategy
    assert isinstance(options, FSDPSpec), "it is what the strategy was chosen by"
    return options


def in_job_precision(spec: JobSpec, device: torch.device, paths: FastPaths) -> JobSpec:
    """`spec` with the dtype that weights are gathered in, where it leaves that open.

    Gathered as float32 each weight would be cast by autocast, which keeps the copies of all blocks
    for the backward pass: half a model more on each GPU, and twice the bytes sent. Gathered as
    bfloat16 a weight is what autocast would have made of it. On a CPU, and in a training that was
    begun on one or by a release that did not choose, it stays as it is.
    """
    options = spec.resources.chosen_strategy
    if not isinstance(options, FSDPSpec) or options.mixed_precision_policy is not None:
        return spec
    halves = device.type == "cuda" and spec.training.bf16
    chosen = paths.choose("fsdp_precision", lambda: _IN_HALVES if halves else None, before=None)
    if chosen is None:
        return spec
    policy = MixedPrecisionPolicySpec.model_validate(chosen)
    strategy = options.model_copy(update={"mixed_precision_policy": policy})
    resources = spec.resources.model_copy(update={"strategy": strategy})
    return spec.model_copy(update={"resources": resources})


def offloading(options: FSDPSpec) -> OffloadPolicy:
    return CPUOffloadPolicy() if options.cpu_offload else OffloadPolicy()


def precision(options: FSDPSpec, output: torch.dtype | None) -> MixedPrecisionPolicy:
    """`output`: of what a module gives, where the options change a dtype. The model's is float32,
    as under autocast: losses are made of it."""
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
    """A copy on the CPU; all processes must ask."""
    if isinstance(value, DTensor):
        value = value.full_tensor().detach()
    # Even from a CPU: it may be a view of more memory, which safetensors refuses.
    return value.to("cpu", copy=True) if isinstance(value, torch.Tensor) else value


def _like(parameter: torch.Tensor, value: Any) -> Any:
    """`value` split as `parameter` is, if it has one number for each of its."""
    fits = isinstance(value, torch.Tensor) and value.shape == parameter.shape
    if not (fits and isinstance(parameter, DTensor)):
        return value
    # Each process takes its part of its own copy: nothing is sent.
    mesh, placements = parameter.device_mesh, parameter.placements
    return distribute_tensor(value, mesh, placements, src_data_rank=None)
