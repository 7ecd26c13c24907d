"""Intervals in steps that are longer than the whole training."""

from collections.abc import Iterator

from service.contract.spec.training import TrainingSpec


def longer_than(total_steps: int, training: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Option → what its interval means for a training of `total_steps`, one sentence.

    Defaults of `eval_steps` and `save_steps` are not reported: most short trainings have them, and
    their end is evaluated and saved anyway.
    """
    trained = f"the training has {total_steps} step" + ("s" if total_steps > 1 else "")
    steps = training.logging_steps
    if training.logging_strategy == "steps" and steps > total_steps:
        shown = "only that of the first step" if training.logging_first_step else "no loss"
        yield (
            "logging_steps",
            f"{trained}, and its loss is reported every {steps:g} steps: {shown} will be shown; "
            f"set `training.logging_steps` to at most {total_steps}, or to a ratio such as 0.05",
        )
    evaluated = training.eval_steps
    if training.eval_strategy == "steps" and evaluated is not None and evaluated > total_steps:
        yield (
            "eval_steps",
            f"{trained}, and `training.eval_steps` is {evaluated:g}: it is evaluated at its end "
            "only",
        )
    saved, default = training.save_steps, TrainingSpec.model_fields["save_steps"].default
    if training.save_strategy == "steps" and saved > total_steps and saved != default:
        yield (
            "save_steps",
            f"{trained}, and `training.save_steps` is {saved:g}: a checkpoint is written at its "
            "end only",
        )
