"""TrainingSpec: `training` of a spec, whose options may have older names, and the rules between
them."""

from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import partial
from typing import Any, Final

from pydantic import ValidationInfo, model_validator

from service.contract.fields.section import Rule
from service.contract.spec.training_fields import TrainingOptions
from service.contract.training_arguments import schedule_arguments
from service.contract.training_arguments.aliases import with_current_names
from service.contract.training_arguments.choices import (
    BY_METRIC,
    OPTIMIZER_ARGUMENTS,
    SCHEDULE_ARGUMENTS,
    parse_optim_args,
)
from service.contract.training_arguments.trainer_defaults import is_at_default


class TrainingSpec(TrainingOptions):
    @model_validator(mode="before")
    @classmethod
    def _accept_older_names(cls, data: Any, info: ValidationInfo) -> Any:
        if not isinstance(data, dict):
            return data
        ignored = set(ignored_options(data))
        given = {name: value for name, value in data.items() if name not in ignored}
        renamed, disagreeing = with_current_names(given)
        return _with_both_names(cls.without_refused(renamed, info, disagreeing))

    @classmethod
    def rules(cls) -> tuple[Rule, ...]:
        return _RULES


def ignored_options(options: Mapping[str, Any]) -> list[str]:
    """The names in `options` that only TrainingArguments has, and that are at a default."""
    return [
        name
        for name in options
        if name not in TrainingSpec.model_fields and is_at_default(name, options)
    ]


def _with_both_names(options: dict[str, Any]) -> dict[str, Any]:
    """With both names of an option that has two, so that whoever reads the spec finds both."""
    if options.get("auto_find_batch_size") is True:
        options.setdefault("on_oom", "halve_batch")
    if options.get("on_oom") == "halve_batch":
        options.setdefault("auto_find_batch_size", True)
    _name_precision(options)
    return options


def _name_precision(options: dict[str, Any]) -> None:
    """Fill `precision` in from `bf16` and `fp16`, or them from it."""
    precision = options.get("precision", "auto")
    flags = [name for name in ("bf16", "fp16") if options.get(name) is True]
    if precision in ("bf16", "fp16"):  # no set: it may be anything, hashable or not
        options.setdefault(precision, True)
    elif precision == "auto" and len(flags) == 1:
        options["precision"] = flags[0]
    elif "precision" not in options and options.get("bf16") is False:
        # Explicitly false: `auto` may not choose bf16 or fp16.
        options["precision"] = "fp32"


# ---- rules --------------------------------------------------------------------------------------


def _refused_if(
    is_broken: Callable[[TrainingSpec], object], sentence: str
) -> Callable[[TrainingSpec], Iterator[str]]:
    return lambda spec: iter((sentence,) if is_broken(spec) else ())


def _steps_are_whole(name: str, spec: TrainingSpec) -> Iterator[str]:
    steps: float | None = getattr(spec, name)
    if steps is not None and steps > 1 and steps != int(steps):
        yield f"`{name}` must be whole when it is above 1, and is {steps}"


def _precision_has_one_name(spec: TrainingSpec) -> Iterator[str]:
    if spec.bf16 and spec.fp16:
        yield "`bf16` and `fp16` exclude each other: give one of them"
    elif spec.precision != ("bf16" if spec.bf16 else "fp16" if spec.fp16 else spec.precision):
        yield f"`precision: {spec.precision}` contradicts `bf16` or `fp16`: give one of them"
    elif spec.precision in {"bf16", "fp16"} and not getattr(spec, spec.precision):
        yield f"`precision` and `{spec.precision}` contradict each other: give one of them"


def _only_rollbacks_have_options(name: str, spec: TrainingSpec) -> Iterator[str]:
    default = TrainingSpec.model_fields[name].default
    if spec.on_non_finite == "fail" and getattr(spec, name) != default:
        yield f"`{name}` does nothing without `on_non_finite: rollback`"


def _optimizer_takes_its_arguments(spec: TrainingSpec) -> Iterator[str]:
    try:
        given = parse_optim_args(spec.optim_args)
    except ValueError as error:
        yield str(error)
    else:
        owner = f"optim: {spec.optim}"
        yield from _unknown("optim_args", given, owner, OPTIMIZER_ARGUMENTS.get(spec.optim, ()))


def _schedule_takes_its_arguments(spec: TrainingSpec) -> Iterator[str]:
    schedule, given = spec.lr_scheduler_type, spec.lr_scheduler_kwargs or {}
    owner = f"lr_scheduler_type: {schedule}"
    yield from _unknown("lr_scheduler_kwargs", given, owner, SCHEDULE_ARGUMENTS.get(schedule, ()))
    yield from schedule_arguments.faults(schedule, given, spec.learning_rate)


def _unknown(option: str, given: Iterable[str], owner: str, known: Iterable[str]) -> Iterator[str]:
    for name in sorted(set(given) - set(known)):
        yield (
            f"`{option}` has `{name}`, but `{owner}` takes "
            + (", ".join(f"`{argument}`" for argument in known) or "none")
        )


def _schedule_has_its_metric(spec: TrainingSpec) -> Iterator[str]:
    if spec.lr_scheduler_type in BY_METRIC and spec.eval_strategy == "no":
        yield f"`lr_scheduler_type: {spec.lr_scheduler_type}` needs `eval_strategy`"


def _best_model_is_evaluated_and_saved(spec: TrainingSpec) -> Iterator[str]:
    if not spec.saves_each_best:
        return
    if spec.eval_strategy == "no":
        yield "the best model is chosen by evaluations: set `eval_strategy` to `steps` or `epoch`"
    elif spec.save_strategy == "no":
        yield (
            "`load_best_model_at_end` needs a checkpoint of each new best evaluation: set "
            "`save_strategy`; with `best` no others are written"
        )


_RULES: Final[tuple[Callable[[TrainingSpec], Iterator[str]], ...]] = (
    partial(_steps_are_whole, "logging_steps"),
    partial(_steps_are_whole, "eval_steps"),
    partial(_steps_are_whole, "save_steps"),
    _precision_has_one_name,
    _refused_if(
        lambda spec: spec.bf16_full_eval and spec.fp16_full_eval,
        "`bf16_full_eval` and `fp16_full_eval` exclude each other: give one of them",
    ),
    _refused_if(
        lambda spec: spec.activation_checkpointing_kwargs and not spec.activation_checkpointing,
        "`activation_checkpointing_kwargs` does nothing without `activation_checkpointing`",
    ),
    _refused_if(
        lambda spec: spec.padding_free and spec.compiles,
        "`padding_free` excludes `torch_compile`, which needs batches of few shapes",
    ),
    _refused_if(
        lambda spec: spec.padding_free and spec.neftune_noise_alpha is not None,
        "`padding_free` excludes `neftune_noise_alpha`, whose noise depends on the padding",
    ),
    _refused_if(
        lambda spec: spec.auto_find_batch_size != (spec.on_oom == "halve_batch"),
        "`on_oom` and `auto_find_batch_size` contradict each other: give one of them",
    ),
    partial(_only_rollbacks_have_options, "non_finite_rollbacks"),
    partial(_only_rollbacks_have_options, "rollback_learning_rate_factor"),
    _optimizer_takes_its_arguments,
    _schedule_takes_its_arguments,
    _refused_if(
        lambda spec: (
            spec.dataloader_prefetch_factor is not None and not spec.dataloader_num_workers
        ),
        "`dataloader_prefetch_factor` needs `dataloader_num_workers` above 0",
    ),
    _refused_if(
        lambda spec: spec.dataloader_persistent_workers and not spec.dataloader_num_workers,
        "`dataloader_persistent_workers` needs `dataloader_num_workers` above 0",
    ),
    _schedule_has_its_metric,
    _refused_if(
        lambda spec: spec.early_stopping_patience is not None and spec.eval_strategy == "no",
        "`early_stopping_patience` needs `eval_strategy`",
    ),
    _best_model_is_evaluated_and_saved,
)
