"""`training.resume_from`: continue the training of another job, and what both must have in common.

The checkpoint's optimizer and schedule bring their numbers with them, and its step says which
examples come next: options that would be overridden by it, or would change its meaning, must be
those of the other job. All others may differ; they hold from the first new step on.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final

from pydantic import Field

from service.contract.types import CheckpointChoice, JobId, SpecModel

if TYPE_CHECKING:
    from service.contract.spec import JobSpec
    from service.contract.training import TrainingSpec

# How the weights change, and which examples each step sees.
_TRAINING: Final = (
    "per_device_train_batch_size",
    "gradient_accumulation_steps",
    "optim",
    "optim_args",
    "learning_rate",
    "weight_decay",
    "adam_beta1",
    "adam_beta2",
    "adam_epsilon",
    "lr_scheduler_type",
    "lr_scheduler_kwargs",
    "warmup_steps",
    "train_sampling_strategy",
    "dataloader_drop_last",
    "seed",
    "data_seed",
)
# `revision` is resolved: `prepare` compares what it came to.
_MODEL: Final = (
    *("name_or_path", "job", "checkpoint", "config", "tokenizer_name", "config_name", "dtype"),
)


class ResumeFromSpec(SpecModel):
    """A checkpoint of another job, restored whole."""

    job: JobId = Field(
        examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
        description="A job with the same task, model, data and optimizer.",
    )
    checkpoint: CheckpointChoice = Field(
        "last", description="`best`, `last` or the step of a checkpoint."
    )


def differences(spec: "JobSpec", source: "JobSpec") -> Iterator[tuple[tuple[str, ...], Any, Any]]:
    """Where the job cannot continue the training of `source`: the field, its value, the other's."""
    pairs: list[tuple[tuple[str, ...], Any, Any]] = [
        (("task",), spec.task, source.task),
        *(
            (("model", name), getattr(spec.model, name), getattr(source.model, name))
            for name in _MODEL
        ),
        (("peft",), spec.peft, source.peft),
        *(
            (("training", name), _option(spec.training, name), _option(source.training, name))
            for name in _TRAINING
        ),
        (("resources", "num_processes"), spec.resources.processes, source.resources.processes),
        (("resources", "strategy"), _strategy(spec), _strategy(source)),
    ]
    yield from ((path, ours, theirs) for path, ours, theirs in pairs if ours != theirs)
    # Without a metric of its own the other job has no best evaluation that could be compared.
    ours, theirs = judged_by(spec.training), judged_by(source.training)
    if theirs is not None and ours != theirs:
        yield ("training", "metric_for_best_model"), ours, theirs


def judged_by(spec: "TrainingSpec") -> str | None:
    """By which metric its evaluations are compared, in words."""
    name = spec.metric_for_best_model or ("loss" if spec.chooses_by_metric else None)
    if name is None:
        return None
    name = name.removeprefix("eval_")
    greater = spec.greater_is_better
    if greater is None:
        greater = not name.endswith("loss")
    return f"{name} ({'greater' if greater else 'lower'} is better)"


def _option(spec: "TrainingSpec", name: str) -> Any:
    value = getattr(spec, name)
    return spec.seed if name == "data_seed" and value is None else value


def _strategy(spec: "JobSpec") -> Any:
    return spec.resources.chosen_strategy if spec.resources.processes > 1 else None
