"""The outputs of the train stage: the finished model, its evaluation, and predictions."""

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch

from service.contract.spec.peft import BASE_CONFIG_FOLDER
from service.contract.stage.stages import StageRequest, TrainResult
from service.contract.states import Phase
from worker.publishing import hub_repository
from worker.stages import artifacts
from worker.stages.train import result_files, tensorboard_file
from worker.stages.train.trainer_state import trainer_state
from worker.storage import atomic_dir
from worker.training import flops
from worker.training.checkpointing import state as checkpoint
from worker.training.evaluation import best_model
from worker.training.evaluation.best_model import Choice
from worker.training.evaluation.validation import Validation
from worker.training.memory import usage
from worker.training.objective import Evaluation
from worker.training.reporting.log_history import WALL_TIME
from worker.training.run import TrainingRun

_OF_EVALUATIONS: Final = ("eval_", "test_")


@dataclass(frozen=True)
class Job:
    request: StageRequest
    tokenizer: Any
    training: TrainingRun
    validation: Validation


def finish(job: Job) -> TrainResult | None:
    """Choose the model, save it, evaluate it, and write the test predictions.

    The first process writes, and returns the result.
    """
    training, state = job.training, job.training.state
    summary = _summary(training)
    chosen = _load_best(job)
    output = job.request.attempt_dir / "output"
    training.reporter.phase(Phase.SAVING)
    with state.strategy.full_model() as model:
        if state.ranks.is_main_process:
            with checkpoint.disk_full_explained("the finished model was written"):
                _save_model(job, model, output)
            files = sorted(path for path in output.rglob("*") if path.is_file())
            _announce(job, {f"model/{path.relative_to(output).as_posix()}": path for path in files})
    _use_full_eval_dtype(job)
    final = _evaluate_final(job, chosen.step)
    tested = _predict(job)
    training.reporter.finished()
    if not state.ranks.is_main_process:
        return None
    if final.config:
        _complete_config(job, output, final.config)
    progress, best = state.progress, _best(job, chosen)
    found = {**final.metrics, **final.speed, **tested.metrics, **tested.speed, **summary}
    _announce(job, _result_files(job, found, best))
    if job.request.spec.tracking.tensorboard:
        _announce(job, _event_file(job, chosen.step, {**tested.metrics, **tested.speed}))
    result = TrainResult(
        output_dir=str(output.relative_to(job.request.workspace)),
        steps=progress.step,
        epochs=training.plan.epoch_after(progress.step),
        metrics=found,
        baseline=progress.baseline,
        **best,
        model_step=chosen.step,
        weights_sha256=_weights_sha256(output),
        precision=job.request.spec.training.precision,
        samples=final.samples,
    )
    return _promoted(result, job.request.trained) if job.request.promotes else result


def _promoted(result: TrainResult, earlier: TrainResult | None) -> TrainResult:
    """The result of a promoted checkpoint: its own evaluation, and the rest from the training.

    `earlier`: the training's result; None if it failed or was cancelled.
    """
    if earlier is None:
        return result.model_copy(update={"is_promoted": True})
    own = {
        name: value for name, value in result.metrics.items() if name.startswith(_OF_EVALUATIONS)
    }
    kept = {
        name: value
        for name, value in earlier.metrics.items()
        if not name.startswith(_OF_EVALUATIONS)
    }
    changes = {
        "is_promoted": True,
        "metrics": {**own, **kept},
        "steps": earlier.steps,
        "epochs": earlier.epochs,
        "best_step": earlier.best_step,
        "best_metric": earlier.best_metric,
        "metric_for_best_model": earlier.metric_for_best_model,
    }
    return result.model_copy(update=changes)


def _summary(training: TrainingRun) -> dict[str, float]:
    state = training.state
    train_loss = (state.progress.loss_total + state.tally.total()) / state.progress.step
    peak = flops.peak_flops(state.accelerator.device, state.accelerator.mixed_precision)
    taken = max(state.ranks.all_gather(usage.peak_bytes()))
    summary = training.reporter.summary(train_loss, peak and peak * state.ranks.world_size, taken)
    return summary | {"train_samples": len(training.objective.train_features)}


def _result_files(job: Job, metrics: dict[str, float], best: Mapping[str, Any]) -> dict[str, Path]:
    training = job.training
    plan, state = training.plan, training.state
    chosen = best["best_step"], best["best_metric"]
    history = trainer_state(state, chosen, training.reporter.total_flos)
    epoch = plan.epoch_after(state.progress.step)
    return result_files.write(job.request.attempt_dir / "results", metrics, epoch, history)


def _event_file(job: Job, step: int, tested: Mapping[str, float]) -> dict[str, Path]:
    """The log history, and the test split's metrics at the finished model's step."""
    history = list(job.training.state.history.entries)
    if tested:
        epoch = job.training.plan.epoch_after(step)
        history.append({**tested, "epoch": epoch, "step": step, WALL_TIME: time.time()})
    name = f"{tensorboard_file.FOLDER}/events.out.tfevents.{job.request.job_id}"
    file = job.request.attempt_dir / name
    tensorboard_file.write(file, history)
    return {name: file}


def _load_best(job: Job) -> Choice:
    """Load the best checkpoint's weights if the options ask for it; the model that was chosen."""
    training, state = job.training, job.training.state
    if job.request.promotes or not job.request.spec.training.load_best_model_at_end:
        return Choice(state.progress.step, state.progress.metric)
    found = best_model.choose(training.best, state.progress, training.workspace)
    chosen = state.ranks.broadcast(found)
    if chosen.folder is not None:
        checkpoint.restore_weights(state, chosen.folder)
    if state.progress.metric is not None and training.best.name is not None:
        training.reporter.notice(
            best_model.described(chosen, training.best.name, state.progress),
            step=chosen.step,
            metric_for_best_model=training.best.name,
            best_metric=chosen.metric,
        )
    return chosen


def _best(job: Job, chosen: Choice) -> dict[str, Any]:
    """The best evaluation: of those that the finished model was chosen from, otherwise of all."""
    progress, name = job.training.state.progress, job.training.best.name
    step, metric = progress.best_step, progress.best_metric
    if job.request.spec.training.load_best_model_at_end:
        step, metric = (None if chosen.metric is None else chosen.step), chosen.metric
    return {"metric_for_best_model": name, "best_step": step, "best_metric": metric}


def _save_model(job: Job, model: Any, output: Path) -> None:
    peft = job.request.spec.peft
    if peft is None:
        model.save_pretrained(output)
    elif peft.merges:
        from worker.training.adapters import adapter

        adapter.merge(model).save_pretrained(output)
    else:
        _save_adapter(job, model, output)
    job.tokenizer.save_pretrained(output)
    atomic_dir.sync_tree(output)


def _complete_config(job: Job, output: Path, more: dict[str, Any]) -> None:
    """Add to the saved model's configuration what only its evaluation has found."""
    file = output / "config.json"
    if not file.exists():  # an adapter has the base model's configuration, with the job's changes
        file = output / BASE_CONFIG_FOLDER / "config.json"
    content = json.loads(file.read_text(encoding="utf-8")) | more
    partly = file.with_suffix(".partial")
    with checkpoint.disk_full_explained("the finished model was written"):
        partly.write_text(json.dumps(content, indent=2, sort_keys=True) + "\n", encoding="utf-8")
        partly.replace(file)
        atomic_dir.sync_tree(file.parent)
    _announce(job, {f"model/{file.relative_to(output).as_posix()}": file})


def save_settings(job: Job) -> None:
    """Save everything but the weights, which each checkpoint has: for pushes while training, and
    for jobs that start from a checkpoint."""
    with job.training.state.strategy.full_model() as model:
        if job.training.state.ranks.is_main_process:
            with checkpoint.disk_full_explained("the model's settings were written"):
                _write_settings(job, model, hub_repository.settings_dir(job.request.attempt_dir))


def _write_settings(job: Job, model: Any, folder: Path) -> None:
    if job.request.spec.peft is None:
        model.save_pretrained(folder, state_dict={})
    else:
        _save_adapter(job, model, folder)
    for file in folder.glob("*.safetensors"):
        file.unlink()
    job.tokenizer.save_pretrained(folder)


def _save_adapter(job: Job, model: Any, folder: Path) -> None:
    from worker.training.adapters import adapter

    assert job.request.prepared is not None
    adapter.save(model, folder, job.request.spec, job.request.prepared.model_revision)


def _use_full_eval_dtype(job: Job) -> None:
    """Cast the model, once it is saved, to the dtype of `bf16_full_eval` or `fp16_full_eval`.

    As in Trainer, evaluations between steps keep the training's precision.
    """
    spec, validation = job.request.spec.training, job.validation
    dtype = torch.bfloat16 if spec.bf16_full_eval else torch.float16
    if spec.bf16_full_eval or spec.fp16_full_eval:
        validation.change_dtype(dtype, job.training.state.bare_model)


def _evaluate_final(job: Job, step: int) -> Evaluation:
    """Metrics, samples and files of the finished model for the validation split."""
    validation = job.validation
    final = Evaluation({})
    if validation.given:
        known = validation.known(step)
        final = known if known is not None else _evaluate_again(job, step)
        _announce(job, final.files)
    return final


def _predict(job: Job) -> Evaluation:
    """Predictions for the test split, and metrics if it has labels."""
    if not job.validation.test_given:
        return Evaluation({})
    job.training.reporter.phase(Phase.PREDICTING)
    tested = job.validation.test()
    _announce(job, tested.files)
    return tested


def _evaluate_again(job: Job, step: int) -> Evaluation:
    reporter = job.training.reporter
    reporter.phase(Phase.EVALUATING)
    reported = job.validation.evaluated(step)
    result = job.validation.run(step)
    # The metrics of an earlier, best step are reported already.
    if step == job.training.state.progress.step and not reported:
        reporter.evaluated(result)
    return result


def _announce(job: Job, files: dict[str, Path]) -> None:
    if job.training.state.ranks.is_main_process:
        artifacts.announce(files, job.request.workspace, job.training.reporter.send)


def _weights_sha256(output: Path) -> str:
    digest = hashlib.sha256()
    for path in sorted(output.glob("*.safetensors")):
        with path.open("rb") as stream:
            for block in iter(partial(stream.read, 1 << 20), b""):
                digest.update(block)
    return digest.hexdigest()
