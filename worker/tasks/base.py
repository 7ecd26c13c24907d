"""The protocol of a task: how its rows become features, and how features are trained on."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

from service.contract.events import Notice
from service.contract.spec import JobSpec, TaskParameters
from worker.training.objective import Objective


@dataclass(frozen=True)
class PrepareContext:
    """What a task has at hand while it prepares; the model's weights are not loaded here."""

    spec: JobSpec
    tokenizer: Any
    config: Any
    """The model's PretrainedConfig."""
    notice: Callable[[Notice], None]
    progress: Callable[[int, int], None]
    """(rows done, rows in all) of the present phase."""


@dataclass(frozen=True)
class PreparedSplit:
    """`features` is what the model sees, `examples` what evaluation needs beside it."""

    examples: Any
    features: Any


class Task(Protocol):
    """One file in this package, one entry in the registry."""

    name: str

    def auto_model(self) -> Any:
        """The transformers Auto class whose models have this task's head."""

    def check(self, split: str, rows: Any, context: PrepareContext) -> None:
        """Look at every row of a `datasets.Dataset` with mapped columns.

        Raises StageError (missing_column, unreadable_row with its number, empty_dataset).
        """

    def prepare(self, split: str, rows: Any, context: PrepareContext) -> PreparedSplit:
        """Tokenise a checked split into two `datasets.Dataset`."""

    def tokenization_settings(self, parameters: TaskParameters) -> Mapping[str, Any]:
        """The parameters that change the features: part of the prepared data's address."""

    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        """The task on this job's data, ready to be trained and evaluated."""


def load_splits(prepared_dir: Path) -> dict[str, PreparedSplit]:
    """Read what `prepare` wrote; the arrays stay memory-mapped."""
    import datasets

    return {
        folder.name: PreparedSplit(
            examples=datasets.load_from_disk(str(folder / "examples")),
            features=datasets.load_from_disk(str(folder / "features")),
        )
        for folder in sorted(prepared_dir.iterdir())
        if folder.is_dir()
    }
