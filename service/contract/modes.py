"""What a job does with its model and its data: `mode` of a spec, and what each mode needs."""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Final, Literal

if TYPE_CHECKING:
    from service.contract.spec import JobSpec

Mode = Literal["train", "evaluate", "predict"]
WITHOUT_TRAINING: Final = ("evaluate", "predict")


def without_training_rows(given: Any) -> Any:
    """The spec as given, where it may leave `dataset.train` out: without an entry for it the field
    counts as missing."""
    if not isinstance(given, dict) or given.get("mode") not in WITHOUT_TRAINING:
        return given
    dataset = given.get("dataset")
    if not isinstance(dataset, dict) or dataset.get("source") not in ("upload", "path"):
        return given
    return {**given, "dataset": {"train": None, **dataset}}


def contradictions(spec: "JobSpec") -> Iterator[str]:
    """Sentences about what the mode lacks, and about what it has no use for."""
    if spec.trains:
        if spec.dataset.train is None:
            yield "`dataset.train` is required: it holds the rows to train on"
        return
    yield from _missing_data(spec)
    if spec.hub is not None:
        yield f"`hub` pushes the model that a training makes, and `{spec.mode}` makes none"
    if spec.tracking.register_as is not None:
        yield (
            "`tracking.register_as` registers the model that a training makes, and "
            f"`{spec.mode}` makes none"
        )
    if spec.tracking.tensorboard:
        yield (
            "`tracking.tensorboard` writes the numbers of a training by step, and "
            f"`{spec.mode}` makes no steps"
        )
    if spec.training.resume_from is not None:
        yield f"`training.resume_from` continues a training, and `{spec.mode}` trains nothing"
    if spec.peft is not None:
        yield f"`peft` describes an adapter to train, and `{spec.mode}` trains nothing"
    if spec.model.config is not None:
        yield (
            "`model.config` makes a model of random weights: give `model.name_or_path`, a model "
            "that was trained for the task"
        )


def _missing_data(spec: "JobSpec") -> Iterator[str]:
    dataset = spec.dataset
    if spec.mode == "predict":
        if dataset.test is None:
            yield "`dataset.test` is required: it holds the rows to make predictions for"
        return
    if dataset.validation_split_percentage is not None:
        if dataset.train is None:
            yield "`dataset.validation_split_percentage` is a share of `dataset.train`: give both"
    elif dataset.validation is None and dataset.test is None:
        yield "`dataset.validation` is required, or `dataset.test`: they hold the rows to score"
