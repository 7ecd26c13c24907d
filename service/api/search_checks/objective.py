"""What a search looks for, and whether its trials are evaluated so that it can be found."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from service.api.schemas.problems import Fault
from service.contract.search import resources
from service.contract.search.objectives import Direction, Objective
from service.contract.search.pruners import AshaPruner, HyperbandPruner, NoPruner, PrunerSpec
from service.contract.search.space import Dimension
from service.contract.search.spec import SearchSpec
from service.contract.spec.spec import JobSpec
from service.contract.tasks import metrics
from service.contract.tasks.metric_directions import greater_is_better
from service.studies.rungs import rung_levels

_OF_TEMPLATE: Final = ("job.training.metric_for_best_model", "job.training.greater_is_better")
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


def default(job: JobSpec) -> Objective:
    """The metric that chooses the best model, or the task's main one, of its first validation
    set."""
    training = job.training
    if training.metric_for_best_model is not None:
        greater = training.greater_is_better
        direction: Direction | None = None
        if greater is not None:
            direction = "maximize" if greater else "minimize"
        return Objective(metric=training.metric_for_best_model, direction=direction)
    reported = metrics.names(job.task)
    metric = next((name for name in _PREFERRED if name in reported), reported[0])
    return Objective(metric="_".join([*_set_names(job)[:1], metric]))


def _set_names(job: JobSpec) -> tuple[str, ...]:
    """Of several validation sets."""
    sets = job.dataset.validation
    return tuple(sets) if isinstance(sets, dict) else ()


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
        where = "objective" if len(objectives) == 1 else f"objective.{index}"
        places = _OF_TEMPLATE if is_default else (f"{where}.metric", f"{where}.direction")
        yield from _of_metric(job, objective, *places)
    if not isinstance(pruner, NoPruner) and job.training.eval_strategy == "no":
        yield Fault(
            path="job.training.eval_strategy",
            code="conflict",
            message=f"`pruner` `{pruner.name}` compares trials during the training, and "
            "`job.training.eval_strategy` is `no`: set it to `steps` or `epoch`",
        )


def _of_metric(job: JobSpec, objective: Objective, metric: str, direction: str) -> Iterator[Fault]:
    """`metric`, `direction`: the fields that decide them."""
    given = objective.metric
    unreported = next(metrics.unreported(job.task, given, _set_names(job), metric), None)
    if unreported is not None:
        near = unreported.rpartition("; did you mean `")[2].removesuffix("`?")
        yield Fault(
            path=metric,
            code="unknown_metric",
            message=unreported,
            given=given,
            suggestion=near if near != unreported else None,
        )
    elif objective.direction is None:
        for sentence in metrics.undirected(job.task, given, metric, direction):
            yield Fault(path=direction, code="missing_field", message=sentence, given=given)


def pruner_faults(
    job: JobSpec, space: Mapping[str, Dimension], pruner: PrunerSpec
) -> Iterator[Fault]:
    """Of evaluations that come too late to compare trials by them."""
    if isinstance(pruner, NoPruner) or job.training.eval_strategy == "no":
        return
    total = resources.total(job.training, space, pruner.unit)
    every = resources.every(job.training, space, pruner.unit)
    if isinstance(pruner, HyperbandPruner) and total is None:
        total = pruner.max_resource
    if isinstance(pruner, HyperbandPruner) and total is None:
        length = "max_steps" if pruner.unit == "steps" else "num_train_epochs"
        yield Fault(
            path="pruner.max_resource",
            code="missing_field",
            message="`hyperband` needs to know how long a whole training is: give `max_resource`, "
            f"or `job.training.{length}` outside of the space",
        )
    elif isinstance(pruner, AshaPruner | HyperbandPruner):
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
    """A rung is where a trial is compared, which needs an evaluation there."""
    path, first = "pruner.min_resource", pruner.min_resource
    if isinstance(pruner, AshaPruner) and pruner.rungs is not None:
        path, first = "pruner.rungs", pruner.rungs[0]
    if not any(rung_levels(pruner, total, every)):
        message = (
            f"no rung lies before the end of a training: the first one is at {first or every:,} "
            f"{pruner.unit}, and the training has {total or 0:,}"
        )
        if first is None or (total is not None and first < total):
            message += f", evaluated every {every:,}: {_MORE_OFTEN}"
        yield Fault(path="pruner" if first is None else path, code="conflict", message=message)
    elif first is not None and first < every:
        yield Fault(
            path=path,
            code="conflict",
            message=f"the first rung is at {first:,} {pruner.unit}, and trials are evaluated every "
            f"{every:,} (`job.training.eval_steps`): {_MORE_OFTEN}, or begin with {every:,}",
            given=first,
        )
