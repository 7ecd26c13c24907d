"""What a valid search will probably not do as its author expects."""

from collections.abc import Iterator
from math import inf, prod

from service.api.faults.redaction import shown
from service.api.schemas.jobs import SpecWarning
from service.contract.search import defaults
from service.contract.search.pruners import MedianPruner
from service.contract.search.samplers import GpSampler, GridSampler, TpeSampler
from service.contract.search.spec import SearchSpec
from service.contract.tasks import metrics


def warnings(search: SearchSpec) -> list[SpecWarning]:
    """Warnings about an accepted search, with its defaults."""
    return [
        *_template_outside(search),
        *_never_learns(search),
        *_never_prunes(search),
        *_grid_is_cut(search),
        *_rows_vary(search),
        *_metric_depends_on_data(search),
    ]


def _template_outside(search: SearchSpec) -> Iterator[SpecWarning]:
    if not search.template_trial or isinstance(search.sampler, GridSampler):
        return
    template = defaults.template_values(search.job, search.dimensions)
    for path, dimension in search.dimensions.items():
        if dimension.is_met(template) and not dimension.holds(template[path]):
            value = shown(path, template[path])
            has = "no value" if value is None else repr(value)
            yield SpecWarning(
                path=f"job.{path}",
                code="outside_of_space",
                message=f"the template has {has}, which is not in `space.{path}`: no trial has the "
                "template's own values",
            )


def _never_learns(search: SearchSpec) -> Iterator[SpecWarning]:
    sampler = search.sampler
    if not isinstance(sampler, TpeSampler | GpSampler):
        return
    if sampler.n_startup_trials >= search.max_trials:
        yield SpecWarning(
            path="sampler.n_startup_trials",
            code="sampler_never_learns",
            message=f"the first {sampler.n_startup_trials:,} trials are random, and `max_trials` "
            f"is {search.max_trials:,}: `{sampler.name}` learns from no result; set "
            "`sampler.n_startup_trials` lower",
        )


def _never_prunes(search: SearchSpec) -> Iterator[SpecWarning]:
    pruner = search.pruner
    if isinstance(pruner, MedianPruner) and pruner.n_startup_trials >= search.max_trials:
        yield SpecWarning(
            path="pruner.n_startup_trials",
            code="pruner_never_prunes",
            message=f"the first {pruner.n_startup_trials:,} trials train to their ends, and "
            f"`max_trials` is {search.max_trials:,}: none is ended early",
        )


def _grid_is_cut(search: SearchSpec) -> Iterator[SpecWarning]:
    if not isinstance(search.sampler, GridSampler):
        return
    count = prod(dimension.size() for dimension in search.dimensions.values())
    if inf > count > search.max_trials:
        yield SpecWarning(
            path="max_trials",
            code="grid_is_cut",
            message=f"`space` has {count:,.0f} combinations, and `max_trials` is "
            f"{search.max_trials:,}: the others are not tried",
        )


def _rows_vary(search: SearchSpec) -> Iterator[SpecWarning]:
    """The seed decides which rows a validation split has."""
    if search.job.dataset.validation_split_percentage is None:
        return
    seeds = ["training.data_seed"]
    if search.job.training.data_seed is None:
        seeds.append("training.seed")
    for path in seeds:
        if path in search.dimensions:
            yield SpecWarning(
                path=f"space.{path}",
                code="validation_rows_vary",
                message="it decides which rows `dataset.validation_split_percentage` takes: trials "
                "are compared on different rows; set `job.training.data_seed`, or give "
                "`job.dataset.validation`",
            )


def _metric_depends_on_data(search: SearchSpec) -> Iterator[SpecWarning]:
    sets = search.job.dataset.validation
    names = list(sets) if isinstance(sets, dict) else []
    for index, each in enumerate(search.objectives):
        metric = each.metric.removeprefix("eval_")
        prefix = next((f"{name}_" for name in names if metric.startswith(f"{name}_")), "")
        if not metrics.depends_on_data(search.job.task, metric.removeprefix(prefix)):
            continue
        yield SpecWarning(
            path="objective.metric" if len(search.objectives) == 1 else f"objective.{index}.metric",
            code="metric_depends_on_data",
            message=f"whether `{each.metric}` is reported depends on the labels, and every trial "
            "fails without it: set `job.task.problem_type` to be sure",
        )
