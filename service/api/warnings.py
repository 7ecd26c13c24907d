"""What a valid spec will probably not do as its author expects: told in the answer to the POST, and
kept as `notice` events of the new job."""

from collections.abc import Iterator, Sequence

from service.api.schemas.jobs import SpecWarning
from service.contract.events import Notice
from service.contract.metric_directions import greater_is_better
from service.contract.routing import most_for_one_job
from service.contract.spec import JobSpec
from service.contract.step_intervals import longer_than
from service.settings import Settings
from service.store import queries
from service.store.database import Database
from service.store.models import EventRow

STEPS_NOT_REACHED = "steps_not_reached"


def warnings(spec: JobSpec, settings: Settings, database: Database) -> list[SpecWarning]:
    """Those of a valid spec, in the order of their paths."""
    return [
        *_missing_gpus(spec, settings, database),
        *_steps_not_reached(spec),
        *_worse_is_kept(spec),
    ]


def notices(warned: Sequence[SpecWarning]) -> list[Notice]:
    return [
        Notice(message=warning.message, data={"path": warning.path, "code": warning.code})
        for warning in warned
    ]


def of_events(events: Sequence[EventRow]) -> list[SpecWarning]:
    """The warnings that `notices` were made from."""
    return [
        SpecWarning(message=event.data["message"], **event.data["data"])
        for event in events
        if event.data["data"].keys() == {"path", "code"}
    ]


def _missing_gpus(spec: JobSpec, settings: Settings, database: Database) -> Iterator[SpecWarning]:
    wanted = spec.resources.gpus or 0
    if not wanted:
        return
    with database.read() as session:
        workers = queries.live_workers(session, settings.alive_seconds)
    most = max((most_for_one_job(worker.devices) for worker in workers), default=0)
    if most >= wanted:
        return
    having = "one GPU" if most == 1 else f"{most} GPUs"
    reason = (
        f"no live worker has {wanted} GPUs (the largest has {having})"
        if most
        else "no live worker has a GPU"
        if workers
        else "no worker is running"
    )
    yield SpecWarning(
        path="resources.gpus",
        code="no_such_worker",
        message=f"{reason}: the job waits until one with {wanted} "
        f"{'GPU' if wanted == 1 else 'GPUs'} starts",
    )


def _steps_not_reached(spec: JobSpec) -> Iterator[SpecWarning]:
    """Where the spec alone says how many steps there are; else the training itself reports it."""
    if not spec.trains or spec.training.max_steps <= 0:
        return
    for option, sentence in longer_than(spec.training.max_steps, spec.training):
        yield SpecWarning(path=f"training.{option}", code=STEPS_NOT_REACHED, message=sentence)


def _worse_is_kept(spec: JobSpec) -> Iterator[SpecWarning]:
    """Where `greater_is_better` contradicts the direction of the metric."""
    metric, greater = spec.training.metric_for_best_model, spec.training.greater_is_better
    if metric is None or greater is None or greater_is_better(metric) in (None, greater):
        return
    kept = "greatest" if greater else "lowest"
    yield SpecWarning(
        path="training.greater_is_better",
        code="worse_is_kept",
        message=f"a {'lower' if greater else 'greater'} `{metric}` is better, and "
        f"`training.greater_is_better` is {str(greater).lower()}: the evaluation with the {kept} "
        "is taken for the best",
    )
