"""What a job does with its model and its data: `mode` of a spec, and what it may leave out."""

from typing import Any, Final, Literal

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
