"""The description that MLflow shows at the top of a run's page, in Markdown."""

import hashlib
from collections.abc import Iterable, Iterator, Mapping
from datetime import datetime
from pathlib import PurePosixPath
from typing import Any, Final, Literal, NamedTuple, Protocol
from urllib.parse import quote

from service.contract.spec import splits
from service.contract.spec.dataset import HubDataset
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST, is_validation, metric_prefix
from service.contract.states import JobState, Stage
from service.system.escaping import markdown, markdown_cell, markdown_code

TAG: Final = "mlflow.note.content"
DIGEST_TAG: Final = "mlflow.finetune.noteDigest"
"""Of the description that the service wrote last: another one is a user's, and is kept. MLflow
hides tags that begin with `mlflow.`."""
_SHOWN_FILES: Final = 5
_SHOWN_METRICS: Final = 24
_MEASURED: Final = ("samples", "runtime", "samples_per_second", "steps_per_second")


class DescribedJob(Protocol):
    """What is read of a `TrackedJob`: stages, which import this module, know no database."""

    @property
    def id(self) -> str: ...
    @property
    def state(self) -> str: ...
    @property
    def ended_at(self) -> datetime | None: ...
    @property
    def failure(self) -> dict[str, Any] | None: ...
    @property
    def results(self) -> dict[str, Any]: ...


def digest(note: str) -> str:
    return hashlib.sha256(note.encode()).hexdigest()


class Subject(NamedTuple):
    """What a run is of."""

    kind: Literal["Job", "Search"]
    id: str

    def line(self, shown: str) -> str:
        return f"- {self.kind}: {shown}"

    @property
    def path(self) -> str:
        """Of its page in the API."""
        return f"v1/{'jobs' if self.kind == 'Job' else 'searches'}/{self.id}"


def with_link(note: str, subject: Subject, public_url: str | None) -> str:
    """`public_url`: where users reach the service, if that is known.

    The link is at the top, because MLflow collapses a description after its first lines.
    """
    if public_url is None:
        return note
    shown = markdown_code(subject.id)
    plain = subject.line(shown)
    linked = subject.line(f"[{shown}]({public_url.rstrip('/')}/{subject.path})")
    return note.replace(plain, linked, 1)


def write(job: DescribedJob, spec: JobSpec, file_names: Mapping[str, str]) -> str:
    """`file_names`: uploaded file id → the name it was uploaded with."""
    lines = [
        Subject("Job", job.id).line(markdown_code(job.id)),
        *_outcome(job),
        f"- Task: {markdown_code(spec.task.type)}, mode {markdown_code(spec.mode)}",
        f"- Model: {markdown_code(spec.model.title)}",
        *(
            f"- Data, {markdown(split)}: {_data(spec, value, file_names)}"
            for split, value in splits.given(spec.dataset).items()
        ),
        *_table(job, spec),
    ]
    heading = [markdown_code(spec.name), ""] if spec.name else []
    return "\n".join([*heading, *lines])


def file_names_of(items: Iterable[str], file_names: Mapping[str, str]) -> list[str]:
    """File ids by the names of their uploads, where those are known; paths by their last part."""
    return [file_names.get(item) or PurePosixPath(item).name for item in items]


def _outcome(job: DescribedJob) -> Iterator[str]:
    if job.ended_at is None:
        return
    if job.failure and job.state == JobState.FAILED:
        yield f"- Failed: {markdown_code(job.failure['code'])}. {markdown(job.failure['message'])}"
        if job.failure.get("action"):
            yield f"- What to do: {markdown(job.failure['action'])}"
        return
    trained = job.results.get(Stage.TRAIN) or {}
    step = trained.get("model_step")
    model = f", the model is that of step {step} of {trained['steps']}" if step else ""
    best, name = trained.get("best_metric"), trained.get("metric_for_best_model")
    score = f", {markdown_code(name)} {_number(best)}" if name and best is not None else ""
    yield f"- Result: {job.state}{model}{score}"
    url = (job.results.get(Stage.PUBLISH) or {}).get("hub_url")
    if url and url.startswith(("https://", "http://")):
        yield f"- On the Hub: <{quote(url, safe=':/')}>"


def _table(job: DescribedJob, spec: JobSpec) -> Iterator[str]:
    """The finished model's metrics: a row for each metric, a column for each split."""
    trained = job.results.get(Stage.TRAIN) or {}
    if job.ended_at is None or job.state != JobState.SUCCEEDED:
        return
    columns = {
        split: _scores(trained.get("metrics") or {}, split)
        for split in splits.given(spec.dataset)
        if is_validation(split) or split == TEST
    }
    columns = {split: found for split, found in columns.items() if found}
    if not columns:
        return
    heads = " | ".join(map(markdown, columns))
    yield from ("", f"| metric | {heads} |", "|---|" + "---|" * len(columns))
    names = list(dict.fromkeys(name for found in columns.values() for name in found))
    for name in names[:_SHOWN_METRICS]:
        values = (_number(found.get(name)) for found in columns.values())
        yield f"| {markdown_cell(name)} | {' | '.join(values)} |"


def _scores(metrics: Mapping[str, Any], split: str) -> dict[str, Any]:
    prefix = metric_prefix(split)
    found = {n.removeprefix(prefix): v for n, v in metrics.items() if n.startswith(prefix)}
    return {name: value for name, value in found.items() if name not in _MEASURED}


def _number(value: Any) -> str:
    return "" if value is None else f"{float(value):.4g}"


def _data(spec: JobSpec, value: Any, file_names: Mapping[str, str]) -> str:
    if isinstance(spec.dataset, HubDataset):
        return f"{markdown_code(spec.dataset.name)}, split {markdown_code(str(value))}"
    names = file_names_of(value, file_names)
    more = len(names) - _SHOWN_FILES
    shown = ", ".join(markdown_code(name) for name in names[:_SHOWN_FILES])
    return f"{shown} and {more} more" if more > 0 else shown
