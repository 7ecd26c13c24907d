"""Decides whether the rows can be used, and reports what is wrong with them."""

import json
from collections.abc import Mapping, Sequence
from typing import Any, Final

from service.contract.spec.splits import TRAIN
from service.contract.stage.events import Notice
from service.contract.stage.stages import StageRequest
from service.contract.tasks import chat_format
from worker.data import report, usable_rows
from worker.data.cleaning import Tally
from worker.data.inferences import Inferences
from worker.data.sources import Data
from worker.data.usable_rows import Policy, Split
from worker.stages.prepare.events import Events
from worker.storage import content_cache
from worker.tasks import row_changes
from worker.tasks.usual_columns import USUAL

_NAMED: Final = 20
"""Bad rows that have an event each."""


class DataReporter:
    """Decides whether the rows can be used, and writes the artifact `data_report.json`."""

    def __init__(self, request: StageRequest, data: Data, events: Events) -> None:
        dataset = request.spec.dataset
        self.policy = Policy(dataset.on_bad_row == "skip", dataset.max_bad_fraction)
        self.max_prepared_bytes = request.max_prepared_bytes
        self.inferences = Inferences()
        self._unused: set[str] = set()
        self._request = request
        self._data = data
        self._events = events

    def require_usable(self, tallies: Mapping[str, Tally]) -> None:
        """Raise a StageError that names the bad rows of splits that cannot be used."""
        splits = [Split(name, tally, self._data.names(name)) for name, tally in tallies.items()]
        problem = self.policy.problem(splits)
        if problem is not None:
            self._name_bad_rows(splits)
            self._write(tallies, {})
            raise problem
        for split, tally in tallies.items():
            # Rows that were left out, and what was changed in others.
            named = {k: v for k, v in tally.changes.items() if k not in row_changes.SENTENCES}
            changes = {"skipped": tally.bad, **named}
            if counts := {name: count for name, count in changes.items() if count}:
                text = ", ".join(
                    f"{name.replace('_', ' ')} {count:,}" for name, count in counts.items()
                )
                message = f"Of {tally.read:,} rows of the {split} split: {text}"
                self._events.notice(Notice(message=message, data={"split": split, **counts}))

        self._warn_of_few_examples(tallies)

    def report_inferences(self) -> None:
        for notice in self.inferences.unreported():
            self._events.notice(notice)

    def report_changes(self, tallies: Mapping[str, Tally]) -> None:
        for notice in row_changes.notices(tallies):
            self._events.notice(notice)

    def report_unused(self, tallies: Mapping[str, Tally]) -> None:
        """Name each column once that other tools read, and this task does not."""
        task = self._request.spec.task.type
        for name in dict.fromkeys(name for tally in tallies.values() for name in tally.unused):
            if name not in self._unused:
                self._unused.add(name)
                splits = [split for split, tally in tallies.items() if name in tally.unused]
                message = f"The column `{name}` is not used: {USUAL[task].unused[name]}"
                self._events.notice(
                    Notice(message=message, data={"unused_column": name, "splits": splits})
                )

    def _name_bad_rows(self, splits: Sequence[Split]) -> None:
        """An event for each of the first, as a person who corrects a file reads them."""
        for split, row in usable_rows.first_bad(splits, _NAMED):
            data = {"split": split.name, "reason": row.reason, "check": row.check}
            known = {name: value for name, value in data.items() if value is not None}
            message = usable_rows.sentence(row, split.tables)
            self._events.notice(Notice(message=message, data=known))
        more = sum(split.tally.bad for split in splits) - _NAMED
        if more > 0:
            message = f"{more:,} more rows cannot be used: `{report.NAME}` lists the first of each"
            self._events.notice(Notice(message=f"{message} split", data={"rows": more}))

    def _warn_of_few_examples(self, tallies: Mapping[str, Tally]) -> None:
        found = tallies[TRAIN].used if TRAIN in tallies else None
        fewest = chat_format.FEWEST_EXAMPLES
        checked = chat_format.openai_checks(self._request.spec.task.type)
        if found is not None and found < fewest and checked:
            message = (
                f"The train split has {found:,} examples. So few teach little; OpenAI's service "
                f"takes no fewer than {fewest}."
            )
            self._events.notice(Notice(message=message, data={"split": TRAIN, "examples": found}))

    def of_entry(self, entry: content_cache.Entry) -> dict[str, Any]:
        self.inferences.read(entry.folder)
        self.report_inferences()
        tallies, measures = report.read(entry.folder)
        self.report_unused(tallies)
        self.report_changes(tallies)
        return report.summary(self._write(tallies, measures))

    def _write(self, tallies: Mapping[str, Tally], measures: Mapping[str, Any]) -> dict[str, Any]:
        names = {split: self._data.names(split) for split in tallies}
        made = report.render(self.policy, names, tallies, measures, self.inferences)
        file = self._request.attempt_dir / report.NAME
        file.write_text(json.dumps(made, indent=2, ensure_ascii=False), encoding="utf-8")
        self._events.artifact(report.NAME, file, self._request.workspace)
        return made
