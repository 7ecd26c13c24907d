"""The train stage: set up, train, hand on the finished model.

Started as `python -m worker.stages.train.stage <request.json>`; works offline on what
`prepare` left.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
import transformers
from accelerate import Accelerator
from accelerate.utils import set_seed
from transformers.integrations.neftune import activate_neftune, deactivate_neftune

from service.contract.spec.spec import JobSpec
from service.contract.stage.events import PhaseChanged
from service.contract.stage.stages import StageRequest, TrainResult
from service.contract.states import Phase
from worker.stages import model_faults
from worker.stages.base import Channel, SoftStop, Stopped, run_stage
from worker.stages.rank_env import number as rank_number
from worker.stages.reference import log_probs
from worker.stages.train import evaluate
from worker.stages.train.inputs import Loaded, for_device, load_parts
from worker.stages.train.outputs import Job, finish, save_settings
from worker.training import build, compile_choice, flops, gpu_check, loop
from worker.training.batches import samplers
from worker.training.batches.rank_shares import RankShares
from worker.training.checkpointing import weights
from worker.training.checkpointing.state import State
from worker.training.distributed import fsdp
from worker.training.distributed.ranks import Ranks
from worker.training.distributed.registry import strategy_of
from worker.training.evaluation.evaluator import Evaluator
from worker.training.evaluation.validation import Validation
from worker.training.kernels import compile_cache
from worker.training.loss import auxiliary_loss
from worker.training.optim import lr_schedulers, optimizers
from worker.training.optim.skipped_steps import SkippedSteps
from worker.training.plan import Plan
from worker.training.progress import BestMetric, LossTally, TrainingProgress
from worker.training.reporting.reporter import Reporter
from worker.training.reporting.value_tally import ValueTally
from worker.training.reproducibility import determinism
from worker.training.run import TrainingRun


def main(request: StageRequest, channel: Channel) -> TrainResult | None:
    """None in all processes but the first."""
    spec = request.spec
    determinism.enable(spec.training)
    gpu_check.require(request.gpus, rank_number() or 0)
    transformers.utils.logging.disable_progress_bar()  # the job's log is not a terminal
    build.flush_denormals()
    channel.send(PhaseChanged(phase=Phase.LOADING))
    explained = determinism.explained(spec.training)
    may_compile = spec.training.compiles or (spec.trains and compile_choice.may_be_measured(spec))
    with explained, compile_cache.shared(request, rank_number() or 0, may_compile=may_compile):
        if not spec.trains:
            with model_faults.in_model():
                return evaluate.run(request, channel)
        with model_faults.in_model():
            job = set_up(request, channel)
            save_settings(job)
            begin(job)
        if request.promotes:  # the steps that are left are not made
            job.training.reporter.stop()
        else:
            train(job, channel.soft_stop)
        return finish(job)


def begin(job: Job) -> None:
    """Continue from the request's checkpoint, or evaluate the model before its first step. Before
    either, compute what the objective needs of the untrained model."""
    request = job.request
    _provide_reference(job)
    if request.resume_from is not None and request.continues_other_job:
        job.training.resume_other_job(request.resume_from)
    elif request.resume_from is not None:
        job.training.resume(request.resume_from)
    elif job.validation.given and request.spec.training.eval_on_start:
        _evaluate_baseline(job)


def _provide_reference(job: Job) -> None:
    training = job.training
    if training.objective.reference_splits:
        training.reporter.phase(Phase.REFERENCE)
        training.reporter.tick(now=True)
        evaluator, send = job.validation.evaluator, training.reporter.send
        log_probs.provide(job.request, training.objective, evaluator, training.state, send)


def train(job: Job, soft_stop: SoftStop) -> None:
    """Make the remaining optimizer steps. Raises Stopped when a soft stop came before their end."""
    soft_stop.postpone()
    if compile_choice.may_be_measured(job.request.spec):
        compile_choice.choose(job.training, compile_cache.Verdict(job.request))
    with _neftune(job), model_faults.in_model(job.training.state):
        outcome = loop.train(job.training)
    if outcome is loop.Outcome.STOPPED:
        raise Stopped
    if job.training.is_saved:
        soft_stop.stop_if_requested()
    else:  # finishing takes less time than repeating the steps since the latest checkpoint
        soft_stop.ignore()


def set_up(request: StageRequest, channel: Channel) -> Job:
    """Load model and data, and wire the training."""
    asked = request.spec.training.precision
    request = for_device(request, channel.send)
    assert request.prepared is not None, "`train` runs after `prepare`"
    spec, send = request.spec.training, channel.send
    accelerator = build.accelerator(request.spec)
    ranks = Ranks.from_accelerator(accelerator)
    assert ranks.world_size == request.spec.resources.processes, "the launcher starts them all"
    set_seed(spec.seed)  # a new head is initialized from these random numbers
    loaded = load_parts(request, request.prepared, accelerator.device, send, ranks)
    objective = loaded.objective
    features = objective.train_features
    plan = Plan.from_spec(spec, len(features), ranks.world_size)
    steps = plan.total_steps
    send(build.placement_notice(accelerator, spec, asked, "Training", steps=steps))
    flops_per_token = flops.flops_per_token(loaded.model)  # before its weights may be sharded
    state = _state(request, accelerator, loaded, plan, ranks)
    unseen = determinism.notice(request.spec, accelerator.device)
    notices = [*build.interval_notices(plan), *state.strategy.notices()]
    for notice in [*notices, *([unseen] if unseen else [])]:
        send(notice)
    reporter = Reporter(send, state, flops_per_token, sizes=loaded.splits)
    validation = _validation(request, state, loaded, reporter, channel.soft_stop)
    smoothing = spec.label_smoothing_factor
    training = TrainingRun(
        state=state,
        objective=objective,
        loss_sum=objective.smoothed(smoothing) if smoothing else objective.loss_sum,
        order=samplers.order(features, plan),
        shares=RankShares(objective, spec, ranks),
        evaluate=validation,
        best=BestMetric(spec),
        reporter=reporter,
        workspace=request.workspace,
        checkpoints_dir=request.attempt_dir / "checkpoints",
        stop_requested=channel.soft_stop,
    )
    # Training draws the same random numbers whatever loading has drawn, and each process its own.
    set_seed((spec.seed + ranks.rank) % 2**32)
    return Job(request, loaded.tokenizer, training, validation)


def _state(
    request: StageRequest, accelerator: Accelerator, loaded: Loaded, plan: Plan, ranks: Ranks
) -> State:
    spec = fsdp.in_job_precision(request.spec, accelerator.device, loaded.fast_paths)
    build.prepare_model(loaded.model, spec.training)

    def build_optimizer(model: torch.nn.Module) -> torch.optim.Optimizer:
        return optimizers.build(model, spec.training, accelerator.device)

    strategy = strategy_of(spec)(accelerator, loaded.model, build_optimizer, spec, ranks)
    scaled = accelerator.scaler is not None
    logged = loaded.objective.logged + auxiliary_loss.of_objective(loaded.objective).names
    state = State(
        accelerator=accelerator,
        strategy=strategy,
        plan=plan,
        scheduler=lr_schedulers.build(strategy.optimizer, plan),
        progress=TrainingProgress(),
        tally=LossTally(accelerator.device, ranks=ranks),
        values=ValueTally(logged, accelerator.device, ranks=ranks),
        ranks=ranks,
        fast_paths=loaded.fast_paths,
        skipped=SkippedSteps(strategy.optimizer.optimizer) if scaled else None,
    )
    if spec.peft is not None:
        _save_adapter_only(state, spec, request)
    return state


def _save_adapter_only(state: State, spec: JobSpec, request: StageRequest) -> None:
    """Leave the base model's weights out of checkpoints; for the Hub, add the file that peft
    loads."""
    from worker.training.adapters import adapter

    assert request.prepared is not None
    state.base = weights.identity(request.prepared.model_dir)
    if spec.hub is not None and spec.hub.strategy != "end":
        state.export = adapter.export


def _validation(
    request: StageRequest, state: State, loaded: Loaded, reporter: Reporter, soft_stop: SoftStop
) -> Validation:
    spec, ranks = request.spec.training, state.ranks
    evaluator = Evaluator(
        state.accelerator,
        state.model,
        loaded.objective,
        spec,
        reporter.tick,
        ranks,
        soft_stop,
        together=state.strategy.forward_is_collective,
        notice=reporter.notice,
    )
    folder = request.attempt_dir / "predictions"
    size = spec.eval_batch_size * ranks.world_size
    return Validation(evaluator, state.progress, folder, loaded.splits, size)


@contextmanager
def _neftune(job: Job) -> Iterator[None]:
    """NEFTune: noise on the embeddings while the model is in training mode."""
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


def _evaluate_baseline(job: Job) -> None:
    """Evaluate the model before its first step; an unknown best metric is found here, too."""
    reporter, progress = job.training.reporter, job.training.state.progress
    reporter.phase(Phase.BASELINE)
    reporter.tick(now=True)
    evaluation = job.validation.run(progress.step)
    job.training.best.value_in(evaluation.metrics)
    progress.baseline = evaluation.metrics
    reporter.evaluated(evaluation)


if __name__ == "__main__":
    run_stage(main)
