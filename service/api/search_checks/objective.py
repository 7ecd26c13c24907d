"""What a search looks for, and whether its trials are evaluated so that it can be found."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from service.api.schemas.problems import Fault
from service.contract import task_metrics
from service.contract.metric_directions import greater_is_better
from service.contract.search import resources
from service.contract.search.objectives import Objective
from service.contract.search.pruners import (
    AshaPruner,
    HyperbandPruner,
    NoPruner,
    PrunerSpec,
)
from service.contract.search.space import Dimension
from service.contract.search.spec import SearchSpec
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


_OF_TEMPLATE: Final = "job.training.metric_for_best_model"
_MORE_OFTEN: Final = "set `job.training.eval_steps` lower"
_PREFERRED: Final = (
    "f1",
    "rouge2",
    "bleu",
    "exact_match",
    "rewards/accuracies",
    "accuracy",
    "loss",
)


def resolved(objectives: Sequence[Objective]) -> list[Objective]:
    """With their directions, where they have one."""
    return [
        each
        if greater_is_better(each.metric) is None
        else Objective(metric=each.metric, direction=each.goal)
        for each in objectives
    ]


def faults(
    job: JobSpec,
    objectives: Sequence[Objective],
    pruner: PrunerSpec,
    given: SearchSpec | None = None,
) -> Iterator[Fault]:
    """Of the metrics, and of when trials are evaluated. `given`: the search before what it left
    out was filled in."""
    if not job.trains:
        yield Fault(
            path="job.mode",
            code="conflict",
            message=f"a search trains models, and `job.mode` is `{job.mode}`",
        )
        return
    dataset = job.dataset
    if dataset.validation is None and dataset.validation_split_percentage is None:
        yield Fault(
            path="job.dataset.validation",
            code="missing_field",
            message="a search compares trials by their evaluations: give `validation`, or "
            "`validation_split_percentage`",
        )
        return
    is_default = given is not None and given.objective is None
    for index, objective in enumerate(objectives):
        place = "objective.metric" if len(objectives) == 1 else f"objective.{index}.metric"
        found = list(_unreported(job, objective, _OF_TEMPLATE if is_default else place))
        yield from found or _undirected(job, objective, place, of_template=is_default)
    if not isinstance(pruner, NoPruner) and job.training.eval_strategy == "no":
        yield Fault(
            path="job.training.eval_strategy",
            code="conflict",
            message=f"`pruner` `{pruner.name}` compares trials during the training, and "
            "`job.training.eval_strategy` is `no`: set it to `steps` or `epoch`",
        )


def _unreported(job: JobSpec, objective: Objective, where: str) -> Iterator[Fault]:
    validation = job.dataset.validation
    sets = tuple(validation) if isinstance(validation, dict) else ()
    for sentence in task_metrics.unreported(job.task, objective.metric, sets, where):
        near = sentence.rpartition("; did you mean `")[2].removesuffix("`?")
        yield Fault(
            path=where,
            code="unknown_metric",
            message=sentence,
            given=objective.metric,
            suggestion=near if near != sentence else None,
        )


def _undirected(
    job: JobSpec, objective: Objective, place: str, *, of_template: bool
) -> Iterator[Fault]:
    if objective.direction is not None:
        return
    metric, direction = place, f"{place.removesuffix('metric')}direction"
    if of_template:
        metric, direction = _OF_TEMPLATE, "job.training.greater_is_better"
    for sentence in task_metrics.undirected(job.task, objective.metric, metric, direction):
        yield Fault(path=direction, code="missing_field", message=sentence, given=objective.metric)


def pruner_faults(
    job: JobSpec, space: Mapping[str, Dimension], pruner: PrunerSpec
) -> Iterator[Fault]:
    """Of evaluations that come too late to compare trials by them."""
    if isinstance(pruner, NoPruner) or job.training.eval_strategy == "no":
        return
    total = resources.total(job.training, space, pruner.unit)
    every = resources.every(job.training, space, pruner.unit)
    if isinstance(pruner, AshaPruner | HyperbandPruner):
        yield from _of_rungs(pruner, total, every)
    elif total is not None and every >= total:
        name = "eval_steps" if job.training.eval_strategy == "steps" else "eval_strategy"
        yield Fault(
            path=f"job.training.{name}",
            code="conflict",
            message=f"`pruner` `{pruner.name}` compares trials during the training, which has "
            f"{total:,} {pruner.unit} and is evaluated every {every:,}: {_MORE_OFTEN}",
        )


def _of_rungs(
    pruner: AshaPruner | HyperbandPruner, total: int | None, every: int
) -> Iterator[Fault]:
    if isinstance(pruner, HyperbandPruner) and total is None and pruner.max_resource is None:
        yield Fault(
            path="pruner.max_resource",
            code="missing_field",
            message="`hyperband` needs to know how long a whole training is: give `max_resource`, "
            f"or `job.training.{'max_steps' if pruner.unit == 'steps' else 'num_train_epochs'}` "
            "outside of the space",
        )
    elif not any(rung_levels(pruner, total, every)):
        yield _no_rung(pruner, total, every)
    else:
        yield from _rung_before_evaluations(pruner, every)


def _rung_before_evaluations(pruner: AshaPruner | HyperbandPruner, every: int) -> Iterator[Fault]:
    """A rung is where a trial is compared, which needs an evaluation there."""
    path, first = _first_rung(pruner)
    if first is not None and first < every:
        yield Fault(
            path=path,
            code="conflict",
            message=f"the first rung is at {first:,} {pruner.unit}, and trials are evaluated every "
            f"{every:,} (`job.training.eval_steps`): {_MORE_OFTEN}, or begin with {every:,}",
            given=first,
        )


def _first_rung(pruner: AshaPruner | HyperbandPruner) -> tuple[str, int | None]:
    """Where it is given, and the rung; None for the default."""
    if isinstance(pruner, AshaPruner) and pruner.rungs is not None:
        return "pruner.rungs", pruner.rungs[0]
    return "pruner.min_resource", pruner.min_resource


def _no_rung(pruner: AshaPruner | HyperbandPruner, total: int | None, every: int) -> Fault:
    path, given = _first_rung(pruner)
    first = given or every
    message = (
        f"no rung lies before the end of a training: the first one is at {first:,} {pruner.unit}, "
        f"and the training has {total or 0:,}"
    )
    if given is None:
        message += f": {_MORE_OFTEN}"
    elif total is not None and first < total:
        message += f", evaluated every {every:,}: {_MORE_OFTEN}"
    return Fault(path="pruner" if given is None else path, code="conflict", message=message)
