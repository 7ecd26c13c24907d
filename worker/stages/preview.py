"""What `prepare` would do with the first rows of a spec: `python -m worker.stages.preview FOLDER`.

Reads `FOLDER/preview.json` and writes `FOLDER/result.json`. It runs the code of `prepare` without
the weights of the model, and without the cache of prepared data. FOLDER is temporary.
"""

import json
import sys
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Final

from service import inherited_secrets
from service.contract.events import Notice, StageEvent
from service.contract.failures import Failure
from service.contract.spec import JobSpec
from service.contract.splits import TRAIN
from service.contract.stages import StageRequest
from service.contract.states import Stage
from worker.base_model import checks, finished_model
from worker.data.cleaning import Tally
from worker.data.report import counts
from worker.data.usable_rows import Split, listed
from worker.stages.base import failure_of
from worker.stages.data_reporter import DataReporter
from worker.stages.prepare_data import Preparation, resolve_data
from worker.stages.prepare_events import Events
from worker.stages.prepare_model import fetch_model, locate_model
from worker.stages.quiet_libraries import quiet_libraries
from worker.tasks import registry
from worker.tasks.base import EXAMPLES_FILE, FEATURES_FILE, Task
from worker.tasks.describe import Describer

REQUEST: Final = "preview.json"
RESULT: Final = "result.json"
_EXAMPLES: Final = 2
_BAD_ROWS: Final = 10
_FEATURES_COUNTED: Final = 1000
_LIMITS: Final = ("max_train_samples", "max_eval_samples", "max_predict_samples")


@dataclass
class Preview:
    rows_limit: int
    splits: dict[str, dict[str, Any]] = field(default_factory=dict)
    examples: list[dict[str, Any]] = field(default_factory=list)
    notices: list[str] = field(default_factory=list)
    unknown_tokens: float | None = None
    """Share of the tokens that the tokenizer has no entry for; None if its entries cover
    everything."""
    max_length: int | None = None
    length_option: str | None = None
    failure: dict[str, Any] | None = None
    """How a job would fail."""

    def send(self, event: StageEvent) -> None:
        if isinstance(event, Notice) and "split" in event.data:
            self.notices.append(event.message)


def main(folder: Path) -> None:
    inherited_secrets.adopt()
    given = json.loads((folder / REQUEST).read_text(encoding="utf-8"))
    result = Preview(rows_limit=given["rows"])
    try:
        spec = _bounded(given["spec"], given["rows"])
        _fill(result, _request(spec, folder, Path(given["cache_dir"])))
    except Exception as error:  # reported like the failure of a job
        result.failure = result.failure or _described(failure_of(error))
    partial = folder / f"{RESULT}.part"
    partial.write_text(json.dumps(asdict(result), ensure_ascii=False), encoding="utf-8")
    partial.replace(folder / RESULT)


def _bounded(spec: dict[str, Any], rows: int) -> JobSpec:
    """The spec with at most so many rows of each split, and no push."""
    dataset = dict(spec["dataset"])
    for limit in _LIMITS:
        dataset[limit] = min(dataset.get(limit) or rows, rows)
    return JobSpec.model_validate({**spec, "dataset": dataset, "hub": None})


def _request(spec: JobSpec, folder: Path, cache_dir: Path) -> StageRequest:
    return StageRequest(
        job_id="preview",
        stage=Stage.PREPARE,
        epoch=1,
        attempt=1,
        spec=spec,
        workspace=folder,
        attempt_dir=folder,
        cache_dir=cache_dir,
        # The service has checked its own roots; here the user reads with his own rights.
        data_roots=[Path("/")],
        model_roots=[Path("/")],
    )


def _fill(result: Preview, request: StageRequest) -> None:
    quiet_libraries()
    events = Events(result)
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
    preparation = Preparation(request.spec, task, model, result.max_length, data, events, reporter)
    folder = request.workspace / "splits"
    folder.mkdir()
    tallies = preparation.check_all(folder)
    for split, tally in tallies.items():
        result.splits[split] = _rows(tally, data.names(split))
    problem = reporter.policy.problem(
        [Split(name, tally, data.names(name)) for name, tally in tallies.items()]
    )
    if problem is not None:
        result.failure = _described(problem.failure)
    _tokenize(result, preparation, tallies, folder)
    _show_examples(result, Describing(request.spec, task, model.tokenizer, folder), tallies)


def _rows(tally: Tally, names: list[str]) -> dict[str, Any]:
    """The counts of the job's data report, and the first bad rows."""
    found = counts(tally)
    return {
        "rows_read": found.pop("rows_read"),
        "rows_usable": found.pop("rows_used"),
        "rows_bad": found.pop("rows_skipped"),
        "bad_by_reason": found.pop("skipped_by_reason"),
        **found,
        "bad_rows": listed(tally, names)[:_BAD_ROWS],
    }


def _tokenize(
    result: Preview, preparation: Preparation, tallies: dict[str, Tally], folder: Path
) -> None:
    """The usable rows of each split, also if the bad ones would end the job."""
    for split, tally in tallies.items():
        if not tally.used:
            continue
        made, measures = preparation.tokenize(split, folder / split)
        result.splits[split] |= {**made, **measures}


@dataclass(frozen=True)
class Describing:
    spec: JobSpec
    task: Task
    tokenizer: Any
    folder: Path


def _show_examples(result: Preview, of: Describing, tallies: dict[str, Tally]) -> None:
    import datasets

    split = next((name for name, tally in tallies.items() if tally.used), None)
    if split is None:
        return
    train = None
    if tallies.get(TRAIN) is not None and tallies[TRAIN].used:
        train = datasets.Dataset.from_file(str(of.folder / TRAIN / EXAMPLES_FILE))
    features = datasets.Dataset.from_file(str(of.folder / split / FEATURES_FILE))
    describer = Describer(of.spec, of.tokenizer, train, split)
    result.unknown_tokens = describer.unknown_share(features[:_FEATURES_COUNTED]["input_ids"])
    for number in range(min(_EXAMPLES, len(features))):
        result.examples.append({"split": split, **describer.of(features[number])})


def _described(failure: Failure) -> dict[str, Any]:
    """Without details: the bad rows are in the splits."""
    return failure.model_dump(mode="json", include={"code", "message", "action"})


if __name__ == "__main__":
    main(Path(sys.argv[1]))
