"""The data in `prepare`: every row checked, then tokenised into the shared cache."""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST, TRAIN, VALIDATION, is_validation, kind
from service.contract.stage import prepared_data
from service.contract.stage.events import Notice
from service.contract.stage.stages import StageRequest
from service.contract.states import Phase
from service.contract.tasks import chat_format
from worker.data import report, sources
from worker.data.cleaning import CountsChanges, RowChecker, Tally
from worker.data.held_out import HeldOut
from worker.data.load import write_examples
from worker.data.prepared_size import SizeLimit
from worker.data.sources import Data
from worker.data.table import Cleaner, Row
from worker.stages import model_faults
from worker.stages.prepare.data_reporter import DataReporter
from worker.stages.prepare.events import Events
from worker.stages.prepare.model import Model
from worker.stages.prepare.tokenizer_identity import tokenizer_identity
from worker.storage import content_cache
from worker.tasks import row_checks
from worker.tasks.base import (
    EXAMPLES_FILE,
    FEATURES_FILE,
    LabelCheck,
    PrepareContext,
    Task,
)
from worker.tasks.classification import label_format

_LAYOUT = 1  # of a cache entry
_REPORT_EVERY: Final = 1000  # rows
LIMITS: Final = {
    TRAIN: "max_train_samples",
    VALIDATION: "max_eval_samples",
    TEST: "max_predict_samples",
}


def resolve_data(request: StageRequest, events: Events) -> Data:
    data = sources.resolve(request, events.progress)
    percentage = request.spec.dataset.validation_split_percentage
    if percentage is None or request.spec.mode == "predict":
        return data
    training = request.spec.training
    seed = training.seed if training.data_seed is None else training.data_seed
    return HeldOut(data, percentage, seed, trains=request.spec.trains)


class Preparation:
    """From resolved data to an entry of the shared cache. `most_read`: rows of each split, bad ones
    included."""

    def __init__(
        self,
        spec: JobSpec,
        task: Task,
        model: Model,
        max_length: int,
        data: Data,
        events: Events,
        reporter: DataReporter,
        most_read: int | None = None,
    ) -> None:
        self._reporter = reporter
        self._most_read = most_read
        self._spec = spec
        self._task = task
        self._model = model
        self._max_length = max_length
        self._data = data
        self._events = events
        self._finder = row_checks.finder(task.name, spec.columns, reporter.inferences)
        self._parameters: Any = spec.task
        """The task's, completed from all rows together."""

    def run(self, cache_dir: Path) -> content_cache.Entry:
        key = content_cache.address(self._ingredients())
        entry = content_cache.get_or_build(cache_dir / prepared_data.FOLDER, key, self._build)
        if entry.found:
            message = "Reusing the prepared data of an earlier job: nothing to check or tokenize"
            self._events.notice(Notice(message=message, data={"fingerprint": key}))
        return entry

    def _ingredients(self) -> Mapping[str, Any]:
        """Everything that the prepared data depends on."""
        import datasets
        import tokenizers
        import transformers

        tokenizer, policy = self._model.tokenizer, self._reporter.policy
        return {
            "layout": _LAYOUT,
            "task": self._task.name,
            "settings": dict(self._task.tokenization_settings(self._spec.task)),
            "max_length": self._max_length,
            "data": self._data.fingerprint(),
            "columns": self._spec.columns,
            "limits": {split: self._limit(split) for split in self._data.splits()},
            "tokenizer": tokenizer_identity(tokenizer),
            # The tokenizer's own, of tasks whose rows it renders; users edit it.
            **({"chat_template": tokenizer.chat_template} if self._task.tokenizes_rows else {}),
            **({"skipping": policy.max_bad_fraction} if policy.skips else {}),
            "versions": [datasets.__version__, tokenizers.__version__, transformers.__version__],
        }

    def _build(self, folder: Path) -> content_cache.Counts:
        counts: content_cache.Counts = {}
        measures = {}
        self._events.phase(Phase.CHECKING)
        tallies = self.check_all(folder)
        self._reporter.require_usable(tallies)
        self._events.phase(Phase.TOKENIZING)
        for split, tally in tallies.items():
            counts[split] = {"examples": tally.used}
            made, measures[split] = self.tokenize(split, folder / split)
            counts[split] |= made
        report.write(folder, tallies, measures)
        self._reporter.inferences.write(folder)
        return counts

    def check_all(self, folder: Path) -> dict[str, Tally]:
        """Check the training rows first: validation rows may have only their labels."""
        try:
            tallies = self._tallies(folder)
        finally:  # they may explain a failure
            self._reporter.report_inferences()
        self._reporter.report_unused(tallies)
        self._reporter.report_changes(tallies)
        return tallies

    def _tallies(self, folder: Path) -> dict[str, Tally]:
        self._parameters = row_checks.decided(
            self._task.name,
            self._spec.task,
            {split: partial(self._read_for, split) for split in self._data.splits()},
            self._reporter.inferences,
        )
        tallies: dict[str, Tally] = {}
        label_check = None
        if not self._spec.trains:
            self._infer(None)
        for split in self._data.splits():
            check = label_check if is_validation(split) else None
            tallies[split] = self._check(split, folder / split, check)
            if split == TRAIN:
                label_check = self._label_check(folder / split, tallies[split])
        return tallies

    def _read_for(self, split: str, detector: label_format.Detector) -> Iterator[Any]:
        """Reads the rows of the split for `detector` alone."""
        checking = self._checking(split, detector)
        for number, row in enumerate(checking.rows(self._data.tables(split))):
            if number % _REPORT_EVERY == 0:
                self._events.progress(number, 0)
            yield row

    def _infer(self, train_examples: Any) -> None:
        """Report what the training rows decide, or the model of a job that does not train."""
        for notice in self._task.infer(self._spec, train_examples, self._reporter.inferences):
            self._events.notice(notice)

    def _label_check(self, folder: Path, train: Tally) -> LabelCheck | None:
        """None if no labels are compared, or if the labels are not known yet, because bad rows that
        must be corrected first may have more."""
        if not train.used or (train.bad and not self._reporter.policy.skips):
            return None
        self._infer(_examples(folder))
        return self._task.label_check(self._spec, _examples(folder))

    def _check(self, split: str, folder: Path, label_check: LabelCheck | None) -> Tally:
        folder.mkdir()
        clean = self._cleaner(split)
        if label_check is not None:
            clean = _Then(clean, partial(_checked, label_check))
        return write_examples(
            self._checking(split, clean),
            self._task.example_schema(),
            self._data.tables(split),
            folder / EXAMPLES_FILE,
            lambda rows: self._events.progress(rows, 0),
            self._size(split),
        )

    def _checking(self, split: str, clean: Cleaner) -> RowChecker:
        task = self._task.name
        return RowChecker(
            columns=row_checks.columns(task, split, self._spec.columns, self._spec.task),
            clean=clean,
            limit=self._limit(split),
            skips=self._reporter.policy.skips,
            most_read=self._most_read,
            openai_checks=chat_format.openai_checks(task),
            finder=self._finder,
        )

    def _cleaner(self, split: str) -> Cleaner:
        """The task's cleaner, with its tokenizer of rows if it has one."""
        clean = row_checks.ROW_CHECKS[self._task.name].cleaner(split, self._parameters)
        if not self._task.tokenizes_rows:
            return clean
        tokenizer = self._model.tokenizer
        tokenize = self._task.row_tokenizer(self._spec, tokenizer, self._max_length, split)

        def tokenized(row: dict[str, Any]) -> dict[str, Any]:
            with model_faults.in_tokenizer():
                return tokenize(row)

        return _Then(clean, tokenized)

    def tokenize(self, split: str, folder: Path) -> tuple[dict[str, int], dict[str, Any]]:
        context = PrepareContext(
            spec=self._spec,
            tokenizer=self._model.tokenizer,
            config=self._model.config,
            max_length=self._max_length,
            notice=self._events.notice,
            progress=self._events.progress,
            train_examples=_examples(folder.parent / TRAIN) if self._spec.trains else None,
            size=self._size(split),
            inferences=self._reporter.inferences,
            only_first=self._most_read is not None,
        )
        examples, target = _examples(folder), folder / FEATURES_FILE
        with model_faults.in_tokenizer():
            features = self._task.prepare(split, examples, context, target)
        self._reporter.report_inferences()
        return {"features": features, **context.counts}, context.measures.summary()

    def _size(self, split: str) -> SizeLimit:
        return SizeLimit(split, self._reporter.max_prepared_bytes)

    def _limit(self, split: str) -> int | None:
        limit: int | None = getattr(self._spec.dataset, LIMITS[kind(split)])
        return limit


@dataclass(frozen=True)
class _Then:
    """Cleans a row, then gives it to `step`."""

    clean: Cleaner
    step: Callable[[dict[str, Any]], dict[str, Any]]

    @property
    def counts(self) -> Mapping[str, int]:
        return self.clean.counts if isinstance(self.clean, CountsChanges) else {}

    def __call__(self, row: Row) -> dict[str, Any]:
        return self.step(self.clean(row))


def _checked(check: LabelCheck, row: dict[str, Any]) -> dict[str, Any]:
    check(row)
    return row


def _examples(folder: Path) -> Any:
    import datasets

    return datasets.Dataset.from_file(str(folder / EXAMPLES_FILE))
