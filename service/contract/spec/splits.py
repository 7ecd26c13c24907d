"""How the splits of a job's data are called: train, validation, validation.<name>, test."""

from typing import Any, Final, Protocol

TRAIN: Final = "train"
VALIDATION: Final = "validation"
TEST: Final = "test"
ALL: Final = (TRAIN, VALIDATION, TEST)
"""The fields of a `dataset` section."""
_NAMED: Final = f"{VALIDATION}."


class _Dataset(Protocol):
    @property
    def train(self) -> Any: ...
    @property
    def validation(self) -> Any: ...
    @property
    def test(self) -> Any: ...
    @property
    def validation_split_percentage(self) -> int | None: ...


class _Job(Protocol):
    @property
    def mode(self) -> str: ...
    @property
    def dataset(self) -> _Dataset: ...


def given(dataset: _Dataset) -> dict[str, Any]:
    """Split → its value in the spec, for those that are given, in the order train, …, test.

    Each of several named validation sets is a split of its own.
    """
    splits = {} if dataset.train is None else {TRAIN: dataset.train}
    if isinstance(dataset.validation, dict):
        splits |= {_NAMED + name: value for name, value in dataset.validation.items()}
    elif dataset.validation is not None:
        splits[VALIDATION] = dataset.validation
    if dataset.test is not None:
        splits[TEST] = dataset.test
    return splits


def used(job: _Job) -> dict[str, Any]:
    """Those of `given` that the job reads: one that does not train leaves the training rows alone,
    unless it scores a share of them."""
    splits = given(job.dataset)
    if job.mode == "predict":
        return {TEST: splits[TEST]}
    if job.mode == "evaluate" and job.dataset.validation_split_percentage is None:
        splits.pop(TRAIN, None)
    return splits


def items(job: _Job) -> list[str]:
    """Every file id or path that the job reads, of data that comes as files, once, in the order of
    the splits."""
    return list(dict.fromkeys(item for values in used(job).values() for item in values))


def kind(split: str) -> str:
    """train, validation or test."""
    return VALIDATION if split.startswith(_NAMED) else split


def is_validation(split: str) -> bool:
    return kind(split) == VALIDATION


def validation_name(split: str) -> str:
    """The name of a named validation set; empty for the only one."""
    return split.removeprefix(VALIDATION).removeprefix(".")


def metric_prefix(split: str) -> str:
    """What the names of its metrics begin with, as Trainer's do: eval_, eval_<name>_, test_."""
    if split == TEST:
        return f"{TEST}_"
    name = validation_name(split)
    return f"eval_{name}_" if name else "eval_"


def place(split: str) -> tuple[str, ...]:
    """Where a spec names the split, within `dataset`."""
    return tuple(split.split(".", 1))


def prefix(split: str) -> str:
    """What the names of the split's files begin with; nothing for the only validation set."""
    return "" if split == VALIDATION else f"{split}/"
