"""What a search looks for, and whether its trials are evaluated so that it can be found."""

from collections.abc import Iterator, Mapping, Sequence

from service.api.schemas.problems import Fault
from service.contract import task_metrics
from service.contract.search import resources
from service.contract.search.objectives import Objective
from service.contract.search.pruners import (
    AshaPruner,
    HyperbandPruner,
    NoPruner,
    PrunerSpec,
)
from service.contract.search.space import Dimension
from service.contract.spec import JobSpec
from service.studies.rungs import rung_levels


def default(job: JobSpec) -> Objective:
    """The metric that chooses the best model, or the last one that the task lists: the lists begin
    with the loss."""
    training = job.training
    if training.metric_for_best_model is not None:
        direction = None
        if training.greater_is_better is not None:
            direction = "maximize" if training.greater_is_better else "minimize"
        return Objective.model_validate(
            {"metric": training.metric_for_best_model, "direction": direction}
        )
    reported = task_metrics.names(job.task)
    sets = job.dataset.validation if isinstance(job.dataset.validation, dict) else {}
    prefix = next((f"{name}_" for name in sets), "")
    metric = next((name for name in _PREFERRED if name in reported), reported[0])
    return Objective(metric=f"{prefix}{metric}")


_PREFERRED = ("f1", "rouge2", "bleu", "exact_match", "rewards/accuracies", "accuracy", "loss")


def resolved(objectives: Sequence[Objective]) -> list[Objective]:
    """With their directions."""
    return [Objective(metric=each.metric, direction=each.goal) for each in objectives]


def faults(
    job: JobSpec, objectives: Sequence[Objective] | None, pruner: PrunerSpec
) -> Iterator[Fault]:
    """Of the metrics, and of when trials are evaluated. `objectives`: as given."""
    if not job.trains:
        yield Fault(
            path="job.mode",
            code="conflict",
            message=f"a search trains models, and `job.mode` is `{job.mode}`",
        )
        return
    has_validation = (
        job.dataset.validation is not None or job.dataset.validation_split_percentage is not None
    )
    if not has_validation:
        yield Fault(
            path="job.dataset.validation",
            code="missing_field",
            message="a search compares trials by their evaluations: give `validation`, or "
            "`validation_split_percentage`",
        )
        return
    validation = job.dataset.validation
    sets = tuple(validation) if isinstance(validation, dict) else ()
    for index, objective in enumerate(objectives or ()):
        where = "objective.metric" if len(objectives or ()) == 1 else f"objective.{index}.metric"
        for sentence in task_metrics.unreported(job.task, objective.metric, sets, where):
            near = sentence.rpartition("did you mean `")[2].removesuffix("`?")
            suggestion = near if "did you mean" in sentence else None
            yield Fault(
                path=where,
                code="unknown_metric",
                message=sentence,
                given=objective.metric,
                suggestion=suggestion,
            )
    if not isinstance(pruner, NoPruner) and job.training.eval_strategy == "no":
        yield Fault(
            path="job.training.eval_strategy",
            code="conflict",
            message=f"`pruner` `{pruner.name}` compares trials during the training, and "
            "`job.training.eval_strategy` is `no`: set it to `steps` or `epoch`",
        )


def pruner_faults(
    job: JobSpec, space: Mapping[str, Dimension], pruner: PrunerSpec
) -> Iterator[Fault]:
    """Of rungs that no trial reaches before its end."""
    if not isinstance(pruner, AshaPruner | HyperbandPruner) or job.training.eval_strategy == "no":
        return
    total = resources.total(job.training, space, pruner.unit)
    every = resources.every(job.training, space, pruner.unit)
    if isinstance(pruner, HyperbandPruner) and total is None and pruner.max_resource is None:
        yield Fault(
            path="pruner.max_resource",
            code="missing_field",
            message="`hyperband` needs to know how long a whole training is: give `max_resource`, "
            f"or `job.training.{'max_steps' if pruner.unit == 'steps' else 'num_train_epochs'}` "
            "outside of the space",
        )
        return
    if any(levels for levels in rung_levels(pruner, total, every)):
        return
    yield _no_rung(pruner, total, every)


def _no_rung(pruner: AshaPruner | HyperbandPruner, total: int | None, every: int) -> Fault:
    has_rungs = isinstance(pruner, AshaPruner) and pruner.rungs is not None
    first = pruner.rungs[0] if isinstance(pruner, AshaPruner) and pruner.rungs else None
    first = first or pruner.min_resource or every
    message = (
        f"no rung lies before the end of a training: the first one is at {first:,} {pruner.unit}, "
        f"and the training has {total or 0:,}"
    )
    if total is not None and first < total:
        message += f", evaluated every {every:,}: lower `job.training.eval_steps`"
    path = "pruner.rungs" if has_rungs else "pruner"
    return Fault(path=path, code="conflict", message=message)
