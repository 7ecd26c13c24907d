"""The base class of a task: how its rows become features, and how features are trained on."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

from service.contract.fields.types import TaskParametersModel
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TRAIN
from service.contract.stage.events import Notice
from service.contract.tasks import metrics
from worker.data.inferences import Inferences
from worker.data.prepared_size import UNLIMITED, SizeLimit
from worker.data.report import Measures
from worker.data.table import Row
from worker.tasks.describe import Describer
from worker.training.objective import Features, Objective

LabelCheck = Callable[[Row], None]
P = TypeVar("P", bound=TaskParametersModel)


def parameters_of(spec: JobSpec, kind: type[P]) -> P:
    """The parameters of the job's task, which is known to be of `kind`."""
    assert isinstance(spec.task, kind), f"the task is {spec.task.type}, not {kind.__name__}"
    return spec.task


@dataclass(frozen=True)
class PrepareContext:
    """The input of `Task.prepare`; the model's weights are not loaded at this point."""

    spec: JobSpec
    tokenizer: Any
    config: Any
    """The model's PretrainedConfig."""
    max_length: int
    """The length of the longest feature in tokens: the result of the task's `max_length`."""
    notice: Callable[[Notice], None]
    progress: Callable[[int, int], None]
    """(rows done, total rows) of the current phase."""
    train_examples: Any = None
    """The cleaned rows of the training split as a `datasets.Dataset`, whichever split is prepared:
    it defines the labels. None in a job that does not train."""
    measures: Measures = field(default_factory=Measures)
    """Lengths of the rows; filled by the task, reported to the user."""
    size: SizeLimit = UNLIMITED
    """Of the features."""
    inferences: Inferences = field(default_factory=Inferences)
    """What the spec leaves open, and the data or the model decides; filled by the task."""
    only_first: bool = False
    """The splits are the first rows of the data alone, for a preview."""
    counts: dict[str, int] = field(default_factory=dict)
    """Further counts for the user; filled by the task, stored with the prepared data."""

    def rows_of(self, split: str) -> str:
        """For a sentence that says how many rows have something."""
        return f"the {'first ' if self.only_first else ''}rows of the {split} split"


@dataclass(frozen=True)
class PreparedSplit:
    """`features` are the model's inputs, `examples` what evaluation needs in addition."""

    examples: Any
    features: Any


class Task(ABC):
    """One file in this package, one entry in the registry, one in `row_checks`.

    What a task does not need, it leaves as it is here. `parameters` are always of the task's own
    class in the contract.
    """

    name: str
    length_option: str
    """The parameter that `max_length` comes from."""
    default_length: int
    """In tokens, where the parameter may be left out; less if the model takes less."""
    auto_class: str
    """The transformers Auto class whose models have this task's head."""
    without_head: str | None = None
    """What to do about a model without this head; None: choose one that has it."""
    needs_pad_token = True
    """Batches hold sequences of unequal length."""
    tokenizes_rows = False
    """Whether rows are tokenized while they are checked (`row_tokenizer`), because only their
    tokens show whether a row can be used."""

    def max_length(self, parameters: Any, limit: int | None) -> int:
        """The length of the longest feature in tokens.

        `limit` is the length that model and tokenizer were made for, None if unknown. Lengths
        beyond a position table are rejected elsewhere.
        """
        requested: int | None = getattr(parameters, self.length_option)
        return requested or min(self.default_length, limit or self.default_length)

    def auto_model(self) -> Any:
        import transformers

        return getattr(transformers, self.auto_class)

    @abstractmethod
    def example_schema(self) -> Any:
        """The `datasets.Features` of cleaned rows."""

    @abstractmethod
    def prepare(self, split: str, examples: Any, context: PrepareContext, target: Path) -> int:
        """Tokenize a `datasets.Dataset` of cleaned rows into the Arrow file `target`.

        Returns the number of features.
        """

    @abstractmethod
    def tokenization_settings(self, parameters: Any) -> Mapping[str, Any]:
        """The parameters that change the features, except `max_length`; part of the key of the
        prepared data."""

    @abstractmethod
    def bind(
        self, spec: JobSpec, tokenizer: Any, model: Any, splits: Mapping[str, PreparedSplit]
    ) -> Objective:
        """The task bound to this job's data, ready for training and evaluation."""

    @abstractmethod
    def target(self, describer: Describer, feature: Mapping[str, Any]) -> str | list[str | None]:
        """What the feature teaches, for a person: a text, or a label for each of `input_ids` (None:
        not scored)."""

    def trained(self, feature: Mapping[str, Any]) -> list[bool] | None:  # noqa: ARG002
        """For each of `input_ids` whether it counts in the loss; None if the loss is not of these
        tokens."""
        return None

    def trained_count(self, describer: Describer, feature: Mapping[str, Any]) -> float | None:  # noqa: ARG002
        """How many tokens count in the loss, if it is of other ones than `input_ids`."""
        return None

    def needs_offsets(self, parameters: Any) -> str | None:  # noqa: ARG002
        """Why the task needs a fast tokenizer, which knows the offsets of tokens; None if it does
        not."""
        return None

    def config_overrides(
        self,
        spec: JobSpec,  # noqa: ARG002
        splits: Mapping[str, PreparedSplit],  # noqa: ARG002
    ) -> Mapping[str, Any]:
        """Fields of the model's configuration that follow from the job's data, for example the size
        of a new head."""
        return {}

    def reported_metrics(
        self,
        spec: JobSpec,
        examples: Any,  # noqa: ARG002
        train: Any,  # noqa: ARG002
    ) -> Iterable[str]:
        """What an evaluation of these `examples` reports, without the prefix of their split; fewer
        or more than the spec says (`service.contract.tasks.metrics`) where the rows decide it.
        `train`: the examples of the training split, which define the labels."""
        return metrics.names(spec.task)

    def set_up(self, tokenizer: Any, model: Any) -> None:  # noqa: B027
        """What a model needs before it runs. Called before the model is tried with its fast paths,
        and before `bind`."""

    def with_labels_of(self, parameters: Any, config: Any) -> Any:  # noqa: ARG002
        """The task's parameters with the labels of a model that was trained for it.

        Raises StageError(invalid_option) if the job's own labels differ.
        """
        return parameters

    def label_check(self, spec: JobSpec, examples: Any) -> LabelCheck | None:  # noqa: ARG002
        """A function that raises RowError for a cleaned validation row whose label is not in the
        training rows, `examples`. Raises StageError if these cannot be used for training."""
        return None

    def infer(
        self,
        spec: JobSpec,  # noqa: ARG002
        examples: Any,  # noqa: ARG002
        found: Inferences,  # noqa: ARG002
    ) -> Iterator[Notice]:
        """Add to `found` what the training rows, `examples`, decide about the labels, or the model
        in a job that does not train; yield what is doubtful about them. Raises StageError if they
        cannot be used for training."""
        return iter(())

    def row_tokenizer(
        self, spec: JobSpec, tokenizer: Any, max_length: int, split: str
    ) -> Callable[[dict[str, Any]], dict[str, Any]]:
        """A function: cleaned row → the row with its tokens, as `example_schema` has it.

        It raises RowError for a row that cannot be used. `max_length` is the result of the task's
        `max_length`. Raises StageError if no row can be tokenized.
        """
        raise NotImplementedError


def train_features(splits: Mapping[str, PreparedSplit]) -> Features:
    """The training split's features; empty if the job does not train."""
    return splits[TRAIN].features if TRAIN in splits else []


def train_examples(splits: Mapping[str, PreparedSplit]) -> Any:
    """The training split's examples; None if the job does not train."""
    return splits[TRAIN].examples if TRAIN in splits else None


EXAMPLES_FILE, FEATURES_FILE = "examples.arrow", "features.arrow"


def load_splits(prepared_dir: Path) -> dict[str, PreparedSplit]:
    """Load the splits that `prepare` wrote; the arrays are memory-mapped."""
    import datasets

    return {
        folder.name: PreparedSplit(
            examples=datasets.Dataset.from_file(str(folder / EXAMPLES_FILE)),
            features=datasets.Dataset.from_file(str(folder / FEATURES_FILE)),
        )
        for folder in sorted(prepared_dir.iterdir())
        if folder.is_dir()
    }
