"""What a job must have in common with the one whose training it continues (`training.resume_from`).

The checkpoint brings the state of its optimizer and its schedule, and its step says which examples
come next: options that it would override, or whose change would give it another meaning, must be
those of the other job. All others may differ, and take effect from the first new step on.
"""

from collections.abc import Callable, Iterator
from operator import attrgetter
from typing import Any, Final

from service.contract.fields.section import UnknownValueError
from service.contract.spec.peft import LoraSpec, PeftSpec
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.contract.tasks.metric_directions import greater_is_better

Path = tuple[str, ...]

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
)
# `prepare` compares the commits that `revision` resolves to.
_MODEL: Final = (
    *("name_or_path", "job", "checkpoint", "config", "tokenizer_name", "config_name", "dtype"),
)


def differences(spec: JobSpec, source: JobSpec) -> Iterator[tuple[Path, Any, Any]]:
    """Where `spec` cannot continue the training of `source`: the field, its value, the other's.

    Fields of `spec` whose values are not known are left out.
    """
    for path, read in _COMPARED:
        try:
            ours, theirs = read(spec), read(source)
        except UnknownValueError:
            continue
        if ours != theirs:
            yield path, ours, theirs
    yield from _metric_difference(spec, source)


def _metric_difference(spec: JobSpec, source: JobSpec) -> Iterator[tuple[Path, Any, Any]]:
    theirs = _metric(source.training)
    if theirs is None:  # without a metric `source` has no best evaluation to compare with
        return
    try:
        ours = _metric(spec.training)
    except UnknownValueError:
        return
    if ours != theirs:
        yield ("training", "metric_for_best_model"), ours, theirs


def _metric(spec: TrainingSpec) -> str | None:
    """The metric that compares the evaluations, in words."""
    name = spec.metric_for_best_model or ("loss" if spec.chooses_by_metric else None)
    if name is None:
        return None
    name = name.removeprefix("eval_")
    greater = spec.greater_is_better
    if greater is None:
        greater = greater_is_better(name)
    return f"{name} ({'lower' if greater is False else 'greater'} is better)"


def _data_seed(spec: JobSpec) -> int:
    given = spec.training.data_seed
    return spec.training.seed if given is None else given


def _adapter(spec: JobSpec) -> PeftSpec | None:
    """Without `merge`, which only decides what is saved in the end."""
    peft = spec.peft
    return peft.model_copy(update={"merge": False}) if isinstance(peft, LoraSpec) else peft


_COMPARED: Final[tuple[tuple[Path, Callable[[JobSpec], Any]], ...]] = (
    (("task",), attrgetter("task")),
    *((("model", name), attrgetter(f"model.{name}")) for name in _MODEL),
    (("peft",), _adapter),
    *((("training", name), attrgetter(f"training.{name}")) for name in _TRAINING),
    (("training", "data_seed"), _data_seed),
    (("resources", "num_processes"), attrgetter("resources.processes")),
    (
        ("resources", "strategy"),
        lambda spec: spec.resources.chosen_strategy if spec.resources.processes > 1 else None,
    ),
)
