"""The inputs of the train stage: tokenizer, model and data, as `prepare` left them."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
import transformers

from service.contract.spec.resources import DDPSpec
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice, StageEvent
from service.contract.stage.project_cache import EQUIVALENCE
from service.contract.stage.stages import PrepareResult, StageRequest
from worker.base_model import finished_model, size
from worker.tasks import registry
from worker.tasks.base import Task, load_splits
from worker.training import build, cpu_products, device_lock, precision
from worker.training.adapters import quantization
from worker.training.batches import dataloader
from worker.training.checkpointing import state
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.registry import leaves_loaded_weights
from worker.training.distributed.shared_weights import read_once
from worker.training.fast_paths import FastPaths
from worker.training.kernels import cpu_attention_choice, gpu_padding_free
from worker.training.kernels.equivalence_check import EquivalenceChecker
from worker.training.loss import chunked_cross_entropy
from worker.training.objective import Features, Objective

_PACKED_BUT_PADDED: Final = (
    "`task.packing` saves neither time nor memory in this job: its model or its options need "
    "padded batches, where each packed sequence is a row as long as the longest. The numbers are "
    "the same. `packing: off` with `training.train_sampling_strategy: group_by_length` is faster"
)


@dataclass(frozen=True)
class Loaded:
    tokenizer: Any
    model: torch.nn.Module
    objective: Objective
    splits: dict[str, int]
    """Split → number of features."""
    fast_paths: FastPaths


def for_device(request: StageRequest, send: Callable[[StageEvent], None]) -> StageRequest:
    """The request with the options that depend on the device: the precision that `auto` means, here
    or where the resumed training started, weights that can be trained in it, and how batches are
    loaded. StageError: checkpoint_unreadable, invalid_option."""
    resumed = request.resume_from
    earlier = state.read_progress(resumed)["precision"] if resumed else None
    assert request.prepared is not None, "`train` runs after `prepare`"
    folder, on_gpu = request.prepared.model_dir, build.on_gpu(request.spec)
    trial = None
    if not on_gpu:
        kept = request.project_cache / EQUIVALENCE
        trial = cpu_products.Trial(request.prepared.model_shapes, kept)
    spec = precision.with_trainable_weights(request.spec, folder)
    spec = precision.resolved(spec, folder, trial, earlier=earlier)
    for notice in precision.notices(request.spec, spec, folder, trial):
        send(notice)
    spec = dataloader.for_device(spec, on_gpu=on_gpu)
    return request.model_copy(update={"spec": spec})


def load_parts(
    request: StageRequest,
    prepared: PrepareResult,
    device: torch.device,
    send: Callable[[StageEvent], None],
    ranks: Ranks,
    *,
    adapter_dir: Path | None = None,
) -> Loaded:
    """Tokenizer, model and data from the local folders that `prepare` filled.
    StageError(invalid_option) if weights to be trained are float16, which `fp16` cannot scale.

    `adapter_dir`: a finished adapter for the model, which the job does not train.
    """
    paths = FastPaths(ranks, _chosen_earlier(request.resume_from, device))
    if device.type == "cpu":
        device_lock.share_cpu(request.cache_dir / "devices")
    _require_fits(request.spec, prepared, device, ranks, request.workspace)
    task = registry.get(request.spec.variant())
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        prepared.tokenizer_dir, local_files_only=True
    )
    splits = load_splits(prepared.prepared_dir)
    overrides = task.config_overrides(request.spec, splits)

    def load() -> tuple[torch.nn.Module, list[str]]:
        found = _load_model(request, prepared, task, overrides, device, send)
        if adapter_dir is None:  # it has the weights that its base model lacks
            finished_model.require_all(request.spec, found[1])
        return found

    once = leaves_loaded_weights(request.spec, device)
    model, new_weights = read_once(load, ranks) if once else load()
    features: Features = next((split.features for split in splits.values()), ())
    trials = EquivalenceChecker(request.project_cache / EQUIVALENCE, device, ranks, send)
    given = gpu_padding_free.ChoiceInputs(features, paths, trials)
    task.set_up(tokenizer, model)
    if build.choose_attention(model, request.spec, device, given):
        send(Notice(message="Batches are computed without padding", data={"padding_free": True}))
    elif request.spec.trains and getattr(request.spec.task, "packing", "off") != "off":
        send(Notice(message=_PACKED_BUT_PADDED, data={"padding_free": False}))
    objective = task.bind(request.spec, tokenizer, model, splits)
    if device.type == "cpu":
        refers = bool(objective.reference_splits)
        cpu_attention_choice.choose(
            model, request.spec, features, paths, trials.folder, refers=refers
        )
    if objective.linear is not None:
        objective.rows = chunked_cross_entropy.choose_chunk_rows(objective.linear, device, paths)
    model = _with_adapter(model, request, prepared, new_weights, send, adapter_dir)
    precision.require_scalable(model, request.spec)
    build.install_fast_modules(model, request.spec, device)
    sizes = {name: len(split.features) for name, split in splits.items()}
    return Loaded(tokenizer, model, objective, sizes, paths)


def _chosen_earlier(checkpoint: Path | None, device: torch.device) -> dict[str, Any]:
    """What the resumed training chose."""
    if checkpoint is None:
        return {}
    chosen: dict[str, Any] = state.read_progress(checkpoint)["fast_paths"]
    if device.type == "cpu":
        chosen.setdefault(cpu_attention_choice.PATH, cpu_attention_choice.UNMEASURED)
    return chosen


def _require_fits(
    spec: JobSpec, prepared: PrepareResult, device: torch.device, ranks: Ranks, workspace: Path
) -> None:
    """StageError before a weight is loaded: of a model that is too large, or too large now.
    Strategies that share the weights out may keep them on the host, so they have no such limit."""
    if prepared.model_parameters is None:
        return
    known = size.Size(prepared.model_parameters, prepared.model_buffer_bytes)
    size.require_fits_disk(known, spec, workspace)
    if device.type == "cpu":
        size.require_fits_host(known, spec)
        if ranks.is_main_process:  # the others may be loading already
            size.require_free_memory(known, spec)
    elif isinstance(spec.resources.chosen_strategy, DDPSpec):
        free, total = torch.cuda.mem_get_info(device)
        size.require_fits_gpu(known, spec, size.Room(int(free), int(total)))


def _load_model(
    request: StageRequest,
    prepared: PrepareResult,
    task: Task,
    overrides: Mapping[str, Any],
    device: torch.device,
    send: Callable[[StageEvent], None],
) -> tuple[torch.nn.Module, list[str]]:
    """The base model with the task's head, and which of its weights are new; or a model from
    scratch."""
    parts = (task.auto_model(), prepared.model_dir, request.spec.model.dtype, overrides)
    if request.spec.model.config is not None:
        model = build.create_model(*parts)
        count = sum(parameter.numel() for parameter in model.parameters())
        message = f"A model from scratch: {count:,} weights, initialized from `training.seed`"
        send(Notice(message=message, data={"parameters": count}))
        return model, []
    loading = quantization.loading(request.spec, task.auto_model(), prepared.model_dir, device)
    model, new_weights = build.load_model(*parts, **loading)
    if device.type == "cpu":
        build.align_weights(model)
    if new_weights and request.spec.trains:
        message = "The base model does not have these weights, so they are initialized at random"
        send(Notice(message=message, data={"weights": new_weights}))
    return model, new_weights


def _with_adapter(
    model: torch.nn.Module,
    request: StageRequest,
    prepared: PrepareResult,
    new_weights: list[str],
    send: Callable[[StageEvent], None],
    finished: Path | None,
) -> torch.nn.Module:
    """The model with the `finished` adapter, or with the new one that the job trains, if any."""
    if finished is None and request.spec.peft is None:
        return model
    from worker.training.adapters import adapter  # takes seconds, and most jobs have no adapter

    if finished is not None:
        return adapter.load(model, finished, new_weights)
    wrapped = adapter.wrap(model, request.spec, prepared.tokenizer_dir, new_weights)
    send(adapter.notice(wrapped))
    return wrapped
