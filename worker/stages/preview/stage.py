"""What `prepare` would make of the first rows of a spec, shown to its author.

It runs the code of `prepare` without the weights of the model, and without the cache of prepared
data.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any, Final

from service.contract.failures import Failure
from service.contract.interactive.previews import MOST_BYTES, PreviewOptions, PreviewResult
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TRAIN, kind
from service.contract.stage.events import Notice, StageEvent
from service.contract.stage.stages import StageRequest
from worker.base_model import checks, finished_model
from worker.data.cleaning import Tally
from worker.data.report import counts
from worker.data.sources import Data
from worker.data.usable_rows import Split, listed
from worker.failures import small
from worker.stages.base import Channel, failure_of, run_stage
from worker.stages.prepare import best_metric
from worker.stages.prepare.data import LIMITS, Preparation, resolve_data
from worker.stages.prepare.data_reporter import DataReporter
from worker.stages.prepare.events import Events
from worker.stages.prepare.model import fetch_model, locate_model
from worker.stages.preview.examples import (
    TokenizedSplits,
    examples_of,
    trained_tokens,
    unknown_share,
)
from worker.stages.quiet_libraries import quiet_libraries
from worker.tasks import registry
from worker.tasks.base import load_splits
from worker.training.plan import Plan

_BAD_ROWS: Final = 10
_READ_FOR_EACH: Final = 10
"""Where bad rows are skipped: so many rows are read at most for each that was asked for."""
_MOST_NOTICES: Final = 20
_LEFT_OUT: Final = (
    "Fewer examples are shown than were asked for: all of them have more than "
    f"{MOST_BYTES // 1024} KiB"
)
_LONGEST_NOTICE: Final = 2000


@dataclass
class Preview:
    """Filled step by step: what was found before a failure is shown, too."""

    rows_limit: int
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    unknown_tokens: float | None = None
    max_length: int | None = None
    length_option: str | None = None
    epoch: dict[str, Any] | None = None
    failure: dict[str, Any] | None = None

    def send(self, event: StageEvent) -> None:
        if isinstance(event, Notice) and len(self.notices) < _MOST_NOTICES:
            self.notices.append(event.message[:_LONGEST_NOTICE])


def main(request: StageRequest, _channel: Channel) -> PreviewResult:
    assert request.preview is not None, "the supervisor gives the options"
    return bounded(preview_of(request, request.preview))


def preview_of(request: StageRequest, options: PreviewOptions) -> PreviewResult:
    """Of the job of `request`; how it would fail is part of the result."""
    quiet_libraries()
    result = Preview(rows_limit=options.rows)
    try:
        _fill(result, _with_first_rows(request, options.rows), request.spec, options)
    except Exception as error:  # reported like the failure of a job
        result.failure = result.failure or _described(failure_of(error))
    return PreviewResult.model_validate(_storable(asdict(result)))


def bounded(result: PreviewResult) -> PreviewResult:
    """With as many examples as there is room for."""
    if not result.is_small():
        result.notices.append(_LEFT_OUT)
    while result.examples and not result.is_small():
        result.examples.pop()
    return result


def _with_first_rows(request: StageRequest, rows: int) -> StageRequest:
    """With at most so many rows of each split, and no push."""
    given = request.spec.dataset
    limits = {name: min(getattr(given, name) or rows, rows) for name in LIMITS.values()}
    changes = {"dataset": given.model_copy(update=limits), "hub": None}
    return request.model_copy(update={"spec": request.spec.model_copy(update=changes)})


def _fill(result: Preview, request: StageRequest, whole: JobSpec, options: PreviewOptions) -> None:
    """`whole`: the spec with the job's own limits."""
    events = Events(result.send)
    task = registry.get(request.spec.variant())
    data = resolve_data(request, events)
    origins = locate_model(request)
    model = fetch_model(request, origins, task, events.notice, with_weights=False)
    request = finished_model.with_labels_of(request, task, model.config)
    result.max_length = checks.check_model(
        task, request.spec, model.config, model.tokenizer, events.notice
    ).max_length
    result.length_option = task.length_option
    reporter = DataReporter(request, data, events)
    preparation = Preparation(
        request.spec,
        task,
        model,
        result.max_length,
        data,
        events,
        reporter,
        most_read=_READ_FOR_EACH * options.rows,
    )
    folder = request.attempt_dir / "splits"
    folder.mkdir()
    tallies = preparation.check_all(folder)
    for split, tally in tallies.items():
        result.splits[split] = _rows(tally, data, split) | _extent(
            tally, data, split, whole, options
        )
    problem = reporter.policy.problem(
        [Split(name, tally, data.names(name)) for name, tally in tallies.items()]
    )
    if problem is not None:
        result.failure = _described(problem.failure)
    # The usable rows of each split, also if the bad ones would end the job.
    usable = [split for split, tally in tallies.items() if tally.used]
    describing = TokenizedSplits(request.spec, model.tokenizer, folder)
    for split in usable:
        made, measures = preparation.tokenize(split, folder / split)
        result.max_length = made.pop("max_length", result.max_length)
        trained = {"trained_tokens": trained_tokens(describing, split)}
        result.splits[split] |= {**made, **measures, **trained}
    if usable:
        result.unknown_tokens = unknown_share(describing, usable[0])
        result.examples = examples_of(describing, usable[0], options.shown)
    if TRAIN in usable:
        result.epoch = _epoch_of(result.splits[TRAIN], whole)
    # The rows that were not read might change what an evaluation reports.
    if len(usable) == len(tallies) and all(each["is_whole"] for each in result.splits.values()):
        best_metric.require_reported(request.spec, task, load_splits(folder))


def _rows(tally: Tally, data: Data, split: str) -> dict[str, Any]:
    """The counts of the job's data report, and the first bad rows."""
    found = counts(tally)
    return {
        "rows_read": found.pop("rows_read"),
        "rows_usable": found.pop("rows_used"),
        "rows_bad": found.pop("rows_skipped"),
        "bad_by_reason": found.pop("skipped_by_reason"),
        **found,
        "bad_rows": listed(tally, data.names(split))[:_BAD_ROWS],
    }


def _extent(
    tally: Tally, data: Data, split: str, whole: JobSpec, options: PreviewOptions
) -> dict[str, Any]:
    """How much of the split this is, with the job's own limit of its rows."""
    limit: int | None = getattr(whole.dataset, LIMITS[kind(split)])
    counted = tally.used if whole.dataset.on_bad_row == "skip" else tally.read
    stopped_early = tally.read >= _READ_FOR_EACH * options.rows
    if not stopped_early and (counted < options.rows or (limit or math.inf) <= options.rows):
        return {"is_whole": True, "rows_estimated": tally.read}
    rows = data.rows(split)
    if rows is not None and not stopped_early:
        rows = max(rows if limit is None else min(rows, limit), tally.read)
    return {"is_whole": rows == tally.read, "rows_estimated": rows}


def _epoch_of(split: Mapping[str, Any], spec: JobSpec) -> dict[str, Any] | None:
    """What one pass over the training rows will be, from what was found in the first of them. None
    if it is unknown how many there are."""
    if not spec.trains or split["rows_estimated"] is None or not split["features"]:
        return None
    scale = split["rows_estimated"] / split["rows_read"]
    features = round(split["features"] * scale)
    trained = split["trained_tokens"]
    plan = Plan.from_spec(spec.training, features, spec.resources.processes)
    return {
        "is_exact": split["is_whole"],
        "rows": split["rows_estimated"],
        "features": features,
        "trained_tokens": None if trained is None else round(trained * scale),
        "batches": plan.batches_per_epoch,
        "optimizer_steps": plan.steps_per_epoch,
        "total_steps": plan.total_steps,
    }


def _described(failure: Failure) -> dict[str, Any]:
    """Without details: the bad rows are in the splits."""
    return small(failure.model_copy(update={"details": {}})).model_dump(mode="json")


def _storable(value: Any) -> Any:
    """Neither a database nor a pipe takes a lone surrogate."""
    if isinstance(value, str):
        return value.encode("utf-8", "replace").decode()
    if isinstance(value, dict):
        return {_storable(key): _storable(each) for key, each in value.items()}
    if isinstance(value, list):
        return [_storable(each) for each in value]
    return value


if __name__ == "__main__":
    run_stage(main)
