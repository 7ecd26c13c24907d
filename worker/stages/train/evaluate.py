"""The train stage of a job that does not train: it evaluates a model, or writes its predictions.

An attempt that is stopped leaves nothing behind, and the next one starts over.
"""

from collections.abc import Callable, Collection
from pathlib import Path
from typing import Any, Final

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers import AutoConfig

from service.contract.failures import FailureCode, StageError
from service.contract.spec.fsdp import FSDPSpec
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST, is_validation
from service.contract.stage.events import Metric, Notice, PhaseChanged, StageEvent
from service.contract.stage.stages import StageRequest, TrainResult
from service.contract.states import Phase
from worker.base_model import finished_model
from worker.stages import artifacts
from worker.stages.base import Channel
from worker.stages.train import result_files
from worker.stages.train.inputs import Loaded, for_device, load_parts
from worker.tasks import registry
from worker.training import build
from worker.training.distributed import fsdp
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.registry import strategy_of
from worker.training.evaluation.evaluator import Evaluator
from worker.training.evaluation.validation import timed
from worker.training.objective import Evaluation
from worker.training.progress import EVAL_PREFIX
from worker.training.reporting.reporter import EvaluationProgress

Send = Callable[[StageEvent], None]
_DOING: Final = {"evaluate": "Evaluating", "predict": "Predicting"}


def run(request: StageRequest, channel: Channel) -> TrainResult | None:
    """None in all processes but the first."""
    asked = request.spec.training.precision
    request = _with_labels(for_device(request, channel.send))
    assert request.prepared is not None, "`train` runs after `prepare`"
    spec, send = request.spec, channel.send
    accelerator = build.accelerator(spec)
    ranks = Ranks.from_accelerator(accelerator)
    set_seed(spec.training.seed)
    loaded = load_parts(request, request.prepared, accelerator.device, send, ranks)
    send(build.placement_notice(accelerator, spec.training, asked, _DOING[spec.mode]))
    held = fsdp.in_job_precision(spec, accelerator.device, loaded.fast_paths)
    model, together = on_device(accelerator, loaded.model, held, ranks)
    size = spec.training.eval_batch_size
    batches = (-(-counts["features"] // size) for counts in request.prepared.splits.values())
    progress = EvaluationProgress(send, sum(batches))
    evaluator = Evaluator(
        accelerator,
        model,
        loaded.objective,
        spec.training,
        progress,
        ranks,
        together=together,
        notice=lambda message, **data: send(Notice(message=message, data=data)),
    )
    set_seed((spec.training.seed + ranks.rank) % 2**32)
    found = _evaluate(request, evaluator, loaded, send, ranks.world_size)
    progress.report()
    _require_scores(spec, loaded.splits, found, send)
    return _result(request, found, send) if ranks.is_main_process else None


def _with_labels(request: StageRequest) -> StageRequest:
    assert request.prepared is not None
    config = AutoConfig.from_pretrained(request.prepared.model_dir, local_files_only=True)
    task = registry.get(request.spec.variant())
    return finished_model.with_labels_of(request, task, config)


def on_device(
    accelerator: Accelerator, model: torch.nn.Module, spec: JobSpec, ranks: Ranks
) -> tuple[Any, bool]:
    """The model to call, and whether no process can call it without the others."""
    training = spec.training
    if training.bf16_full_eval or training.fp16_full_eval:
        model.to(torch.bfloat16 if training.bf16_full_eval else torch.float16)
    if not isinstance(spec.resources.chosen_strategy, FSDPSpec):
        return accelerator.prepare_model(model, evaluation_mode=True), False
    # FSDP needs an optimizer; this one has no state, and takes no step.
    strategy = strategy_of(spec)(
        accelerator, model, lambda sharded: torch.optim.SGD(sharded.parameters()), spec, ranks
    )
    return strategy.model, strategy.forward_is_collective


def _evaluate(
    request: StageRequest, evaluator: Evaluator, loaded: Loaded, send: Send, processes: int
) -> Evaluation:
    """The results of all splits together, the validation splits first."""
    metrics: dict[str, float] = {}
    speed: dict[str, float] = {}
    size = request.spec.training.eval_batch_size * processes
    folder = request.attempt_dir / "predictions"
    files: dict[str, Path] = {}
    samples: list[dict[str, Any]] = []
    for split in sorted(loaded.splits, key=lambda name: (name == TEST, name)):
        phase = Phase.EVALUATING if is_validation(split) else Phase.PREDICTING
        send(PhaseChanged(phase=phase))
        found = timed(evaluator, split, folder, loaded.splits[split], size)
        metrics |= found.metrics
        speed |= found.speed
        files |= found.files
        samples += found.samples
    return Evaluation(metrics, files, samples, speed=speed)


def _require_scores(spec: JobSpec, splits: Collection[str], found: Evaluation, send: Send) -> None:
    """StageError(label_mismatch) if nothing could be scored; a notice if only the test split could
    not."""
    if spec.mode != "evaluate" or TEST not in splits:
        return
    if any(name.startswith(f"{TEST}_") for name in found.metrics):
        return
    problem = "Not every row of the test split has a label that the model knows"
    if not found.metrics:
        raise StageError(
            FailureCode.LABEL_MISMATCH,
            f"{problem}, so nothing can be scored. To get predictions only, use `mode: predict`",
            split=TEST,
        )
    send(Notice(message=f"{problem}: it gets predictions, but no scores", data={"split": TEST}))


def _result(request: StageRequest, found: Evaluation, send: Send) -> TrainResult:
    """Report the metrics and files, and return them."""
    numbers = {**found.metrics, **found.speed}
    files = result_files.write(request.attempt_dir / "results", numbers, 0.0)
    artifacts.announce({**found.files, **files}, request.workspace, send)
    evaluated = {n: value for n, value in found.metrics.items() if n.startswith(EVAL_PREFIX)}
    if evaluated:
        send(Metric(kind="eval", step=0, values=evaluated))
    return TrainResult(
        output_dir=None,
        steps=0,
        epochs=0.0,
        metrics=numbers,
        baseline={},
        weights_sha256=None,
        precision=request.spec.training.precision,
        samples=found.samples,
    )
