"""The train stage: wires model, task and loop, and hands on the finished model.

Started as `python -m worker.stages.train <request.json>`; works offline on what `prepare` left.
"""

import hashlib
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers.integrations.neftune import activate_neftune, deactivate_neftune
from transformers.trainer_utils import enable_full_determinism

from service.contract.events import ArtifactWritten, Notice, PhaseChanged, StageEvent
from service.contract.spec import JobSpec
from service.contract.splits import is_validation
from service.contract.stages import PrepareResult, StageRequest, TrainResult
from service.contract.states import Phase
from worker import checkpoints, hub
from worker.stages.base import Channel, SoftStop, Stopped, run_stage
from worker.stages.ranks import number as rank_number
from worker.tasks import registry
from worker.tasks.base import ShapesModel, Task, load_splits
from worker.training import (
    build,
    checkpoint,
    compiled,
    device_lock,
    loop,
    optimizers,
    precision,
    quantized,
    sampling,
    schedules,
    smoothing,
    speed,
    strategies,
    weights,
)
from worker.training.checkpoint import State
from worker.training.evaluation import Evaluator
from worker.training.objective import Evaluation, Objective
from worker.training.plan import Plan
from worker.training.progress import BestMetric, LossTally, TrainingProgress
from worker.training.ranks import Ranks
from worker.training.reporting import Reporter
from worker.training.sharing import Sharing


def main(request: StageRequest, channel: Channel) -> TrainResult | None:
    """None in all processes but the first."""
    transformers.utils.logging.disable_progress_bar()  # the job's log is no terminal
    channel.send(PhaseChanged(phase=Phase.LOADING))
    with compiled.shared(request, rank_number() or 0):
        job = _load(request, channel)
        _leave_settings_for_pushes(job)
        if request.resume_from is not None:
            job.training.resume(request.resume_from)
        elif job.validation.given:
            _evaluate_baseline(job)
        _train(job, channel.soft_stop)
        return _finish(job)


def _train(job: "_Job", soft_stop: SoftStop) -> None:
    """Make the steps that are left. Raises Stopped when a soft stop came before their end."""
    soft_stop.postpone()
    try:
        with _noise(job):
            loop.train(job.training)
    except loop.StoppedEarlyError:
        raise Stopped from None
    if job.training.is_saved:
        soft_stop.honour()
    else:  # what is left takes less time than the steps that would be made again
        soft_stop.ignore()


@dataclass(frozen=True)
class _Loaded:
    tokenizer: Any
    model: torch.nn.Module
    objective: Objective
    splits: frozenset[str]


@dataclass(frozen=True)
class _Job:
    request: StageRequest
    tokenizer: Any
    training: loop.Training
    validation: "_Validation"


class _Validation:
    """Evaluates the validation splits and remembers the last result with its step."""

    def __init__(
        self, evaluator: Evaluator, progress: TrainingProgress, folder: Path, splits: frozenset[str]
    ) -> None:
        self.evaluator = evaluator
        self._splits = sorted(filter(is_validation, splits))
        self.given = bool(self._splits)
        self.test_given = "test" in splits
        self.folder = folder
        self._progress = progress
        self._last: tuple[int, Evaluation] | None = None
        self._dtype_changed = False

    def __call__(self) -> dict[str, float]:
        return self.run(self._progress.step).metrics

    def run(self, step: int) -> Evaluation:
        """Evaluate the loaded model, which is that of `step`."""
        metrics: dict[str, float] = {}
        files: dict[str, Path] = {}
        samples: list[dict[str, Any]] = []
        for split in self._splits:
            result = self.evaluator(split, self.folder)
            assert result is not None, "asked for only where there is such a split"
            metrics |= result.metrics
            files |= result.files
            samples += result.samples
        whole = Evaluation(metrics, files, samples)
        self._last = (step, whole)
        return whole

    def change_dtype(self, dtype: torch.dtype, model: torch.nn.Module) -> None:
        """Evaluate in another dtype from now on; what is known of `model` no longer holds."""
        model.to(dtype)
        self._dtype_changed = True

    def known(self, step: int) -> Evaluation | None:
        """The last result, if it is that of `step`: its files still lie there."""
        if self._last is None or self._dtype_changed or not self.evaluated(step):
            return None
        return self._last[1]

    def evaluated(self, step: int) -> bool:
        """Whether the last evaluation was of this step, in whatever dtype."""
        return self._last is not None and self._last[0] == step


def _load(request: StageRequest, channel: Channel) -> _Job:
    asked = request.spec.training.precision
    request = _with_precision(request)
    assert request.prepared is not None, "`train` runs after `prepare`"
    spec, send = request.spec.training, channel.send
    accelerator = build.accelerator(request.spec)
    ranks = Ranks.of(accelerator)
    assert ranks.count == request.spec.resources.processes, "the launcher starts them all"
    if spec.full_determinism:
        enable_full_determinism(spec.seed)
    set_seed(spec.seed)  # a new head starts from these random numbers
    loaded = _load_parts(request, request.prepared, accelerator.device, send)
    features = loaded.objective.train_features
    plan = Plan.of(spec, len(features), ranks.count)
    send(build.notice(accelerator, plan, asked))
    state = _state(accelerator, loaded.model, request.spec, plan, ranks)
    for held in state.strategy.notices():
        send(held)
    if request.spec.peft is not None:
        _keep_adapter_only(state, request)
    reporter = Reporter(send, plan, state.progress)
    evaluator = Evaluator(
        accelerator,
        state.model,
        loaded.objective,
        spec,
        reporter.tick,
        ranks,
        channel.soft_stop,
        together=state.strategy.evaluates_together,
    )
    predictions = request.attempt_dir / "predictions"
    validation = _Validation(evaluator, state.progress, predictions, loaded.splits)
    training = loop.Training(
        plan=plan,
        state=state,
        objective=loaded.objective,
        loss_sum=smoothing.loss_sum(loaded.objective, spec.label_smoothing_factor),
        order=sampling.order(features, plan),
        shares=Sharing(loaded.objective, spec, ranks),
        evaluate=validation,
        best=BestMetric(spec),
        reporter=reporter,
        workspace=request.workspace,
        checkpoints_dir=request.attempt_dir / "checkpoints",
        stop_requested=channel.soft_stop,
    )
    # Training draws the same numbers whatever loading has drawn, and each process its own.
    set_seed((spec.seed + ranks.number) % 2**32)
    return _Job(request, loaded.tokenizer, training, validation)


def _with_precision(request: StageRequest) -> StageRequest:
    """The request with what `training.precision: auto` comes to, here or where the training that
    is resumed began. StageError(checkpoint_unreadable)."""
    earlier = checkpoint.precision_of(request.resume_from) if request.resume_from else None
    assert request.prepared is not None, "`train` runs after `prepare`"
    spec = precision.resolved(
        request.spec,
        request.prepared.model_dir,
        on_gpu=build.on_gpu(request.spec),
        earlier=earlier,
    )
    return request.model_copy(update={"spec": spec})


def _load_parts(
    request: StageRequest,
    prepared: PrepareResult,
    device: torch.device,
    send: Callable[[StageEvent], None],
) -> _Loaded:
    """Tokenizer, model and data from the local folders that `prepare` filled."""
    device_lock.share(request.cache_dir / "devices", device)
    task = registry.get(request.spec.task.variant())
    tokenizer = transformers.AutoTokenizer.from_pretrained(
        prepared.tokenizer_dir, local_files_only=True
    )
    splits = load_splits(prepared.prepared_dir)
    overrides = task.config_overrides(request.spec, splits) if isinstance(task, ShapesModel) else {}
    model, new_weights = _load_model(request, prepared, task, overrides, device, send)
    if build.choose_attention(model, request.spec, device):
        send(Notice(message="Batches are computed without padding", data={"padding_free": True}))
    objective = task.bind(request.spec, tokenizer, model, splits)
    if request.spec.peft is not None:
        model = _add_adapter(model, request.spec, prepared, new_weights, send)
    build.quicken(model, request.spec, device)
    return _Loaded(tokenizer, model, objective, frozenset(splits))


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
        model = build.model_from_scratch(*parts)
        count = sum(parameter.numel() for parameter in model.parameters())
        message = f"A model from scratch: {count:,} weights, drawn from `training.seed`"
        send(Notice(message=message, data={"parameters": count}))
        return model, []
    loading = quantized.loading(request.spec, task.auto_model(), prepared.model_dir, device)
    model, new_weights = build.model(*parts, **loading)
    if new_weights:
        message = "These weights are not in the base model and start at random"
        send(Notice(message=message, data={"weights": new_weights}))
    return model, new_weights


def _add_adapter(
    model: torch.nn.Module,
    spec: JobSpec,
    prepared: PrepareResult,
    new_weights: list[str],
    send: Callable[[StageEvent], None],
) -> torch.nn.Module:
    from worker.training import peft  # takes seconds, and most jobs have no adapter

    wrapped = peft.wrap(model, spec, prepared.tokenizer_dir, new_weights)
    send(peft.notice(wrapped))
    return wrapped


def _keep_adapter_only(state: State, request: StageRequest) -> None:
    """Checkpoints without the base model's weights; for the Hub they hold what peft loads, too."""
    from worker.training import peft

    assert request.prepared is not None
    state.base = weights.identity(request.prepared.model_dir)
    if request.spec.hub is not None and request.spec.hub.strategy != "end":
        state.export = peft.export


def _state(
    accelerator: Accelerator, model: torch.nn.Module, spec: JobSpec, plan: Plan, ranks: Ranks
) -> State:
    build.prepare_model(model, spec.training)

    def build_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return optimizers.build(model, spec.training, accelerator.device)

    strategy = strategies.join(accelerator, model, build_optimizer, spec, ranks)
    return State(
        accelerator=accelerator,
        strategy=strategy,
        scheduler=schedules.build(strategy.optimizer, plan),
        progress=TrainingProgress(),
        tally=LossTally(accelerator.device, ranks=ranks),
        ranks=ranks,
    )


@contextmanager
def _noise(job: _Job) -> Iterator[None]:
    """NEFTune: noise on the embeddings inside, while the model is in training mode."""
    alpha = job.request.spec.training.neftune_noise_alpha
    if alpha is None:
        yield
        return
    model: Any = job.training.state.bare_model
    if job.request.spec.peft is not None:
        model = model.get_base_model()
    hook = activate_neftune(model, alpha)
    yield
    deactivate_neftune(model, hook)


def _evaluate_baseline(job: _Job) -> None:
    """What the model can do before its first step; finds an unknown best metric early, too."""
    reporter = job.training.reporter
    reporter.phase(Phase.BASELINE)
    reporter.tick(now=True)
    metrics = job.validation()
    job.training.best.of(metrics)
    job.training.state.progress.baseline = metrics
    reporter.evaluated(metrics)


def _finish(job: _Job) -> TrainResult | None:
    """Choose the model, save it, evaluate it, and make the test predictions.

    Of several processes the first one writes and has the result.
    """
    training, state = job.training, job.training.state
    step = _load_best(job)
    output = job.request.attempt_dir / "output"
    training.reporter.phase(Phase.SAVING)
    with state.strategy.whole() as model:
        if state.ranks.is_first:
            with checkpoint.disk_full_explained("the finished model was written"):
                _save_model(job, model, output)
            files = sorted(path for path in output.rglob("*") if path.is_file())
            _announce(job, {f"model/{path.relative_to(output).as_posix()}": path for path in files})
    _use_full_eval_dtype(job)
    final = _evaluate_final(job, step)
    progress = state.progress
    train_loss = (progress.loss_total + state.tally.total()) / progress.step
    if not state.ranks.is_first:
        return None
    return TrainResult(
        output_dir=str(output.relative_to(job.request.workspace)),
        steps=progress.step,
        epochs=training.plan.epoch_after(progress.step),
        metrics={**final.metrics, **_summary(training, train_loss)},
        baseline=progress.baseline,
        best_step=progress.best_step,
        weights_sha256=_weights_sha256(output),
        precision=job.request.spec.training.precision,
        samples=final.samples,
    )


def _summary(training: loop.Training, train_loss: float) -> dict[str, float]:
    state = training.state
    return training.reporter.summary(
        train_loss,
        speed.floating_point_ops(state.bare_model, state.progress.padded_tokens),
        speed.peak_flops(state.accelerator.device, state.accelerator.mixed_precision),
    )


def _load_best(job: _Job) -> int:
    """Put the best checkpoint's weights into the model where that was asked for; its step."""
    progress = job.training.state.progress
    if not job.request.spec.training.load_best_model_at_end or progress.best_checkpoint is None:
        return progress.step
    folder = job.request.workspace / progress.best_checkpoint
    checkpoint.restore_weights(job.training.state, folder)
    return int(folder.name)


def _save_model(job: _Job, model: Any, output: Path) -> None:
    if job.request.spec.peft is None:
        model.save_pretrained(output)
    else:
        _save_adapted(job, model, output)
    job.tokenizer.save_pretrained(output)
    checkpoints.sync_tree(output)


def _leave_settings_for_pushes(job: _Job) -> None:
    """All of the model but its weights, which each checkpoint has, where they are pushed."""
    target = job.request.spec.hub
    if target is None or not target.pushes_while_training:
        return
    with job.training.state.strategy.whole() as model:
        if job.training.state.ranks.is_first:
            _save_settings(job, model, hub.settings_dir(job.request.attempt_dir))


def _save_settings(job: _Job, model: Any, folder: Path) -> None:
    if job.request.spec.peft is None:
        model.save_pretrained(folder, state_dict={})
    else:
        _save_adapter(job, model, folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    job.tokenizer.save_pretrained(folder)


def _save_adapted(job: _Job, model: Any, output: Path) -> None:
    """The adapter alone, or the base model with it in its weights."""
    from worker.training import peft

    assert job.request.spec.peft is not None
    if job.request.spec.peft.merges:
        peft.merge(model).save_pretrained(output)
    else:
        _save_adapter(job, model, output)


def _save_adapter(job: _Job, model: Any, folder: Path) -> None:
    from worker.training import peft

    assert job.request.prepared is not None
    peft.save(model, folder, job.request.spec, job.request.prepared.model_revision)


def _use_full_eval_dtype(job: _Job) -> None:
    """Give the finished model, which is saved, the dtype of `bf16_full_eval` or fp16_full_eval.

    As in Trainer, evaluations between steps keep the training's precision.
    """
    spec, validation = job.request.spec.training, job.validation
    dtype = torch.bfloat16 if spec.bf16_full_eval else torch.float16
    if spec.bf16_full_eval or spec.fp16_full_eval:
        validation.change_dtype(dtype, job.training.state.bare_model)


def _evaluate_final(job: _Job, step: int) -> Evaluation:
    """Metrics and samples of the finished model on the validation split; files of both splits."""
    reporter, validation = job.training.reporter, job.validation
    final = Evaluation({})
    if validation.given:
        known = validation.known(step)
        final = known if known is not None else _evaluate_again(job, step)
        _announce(job, final.files)
    if validation.test_given:
        reporter.phase(Phase.PREDICTING)
        predictions = validation.evaluator("test", validation.folder)
        assert predictions is not None, "asked for only where there is a test split"
        _announce(job, predictions.files)
    return final


def _evaluate_again(job: _Job, step: int) -> Evaluation:
    reporter = job.training.reporter
    reporter.phase(Phase.EVALUATING)
    reported = job.validation.evaluated(step)
    result = job.validation.run(step)
    # The best one's step has its numbers already.
    if step == job.training.state.progress.step and not reported:
        reporter.evaluated(result.metrics)
    return result


def _announce(job: _Job, files: dict[str, Path]) -> None:
    if not job.training.state.ranks.is_first:
        return
    for name, path in files.items():
        job.training.reporter.send(
            ArtifactWritten(
                name=name,
                path=str(path.relative_to(job.request.workspace)),
                bytes=path.stat().st_size,
                sha256=checkpoints.file_sha256(path),
            )
        )


def _weights_sha256(output: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(output.glob("*.safetensors")):
        with path.open("rb") as stream:
            for block in iter(partial(stream.read, 1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()


if __name__ == "__main__":
    run_stage(main)
