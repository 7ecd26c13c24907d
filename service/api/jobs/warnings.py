"""Warnings about a valid spec that will probably not do what its author expects: part of the answer
to the POST, and kept as `notice` events of the new job."""

from collections.abc import Iterator, Sequence

from service.api.faults import live_workers
from service.api.schemas.jobs import SpecWarning
from service.contract.routing import most_for_one_job
from service.contract.spec.spec import JobSpec
from service.contract.spec.step_intervals import longer_than
from service.contract.stage.events import Notice
from service.contract.tasks.metric_directions import greater_is_better
from service.contract.tasks.parameters import QuestionAnsweringSpec
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import queries
from service.store.tables.jobs import EventRow

STEPS_NOT_REACHED = "steps_not_reached"
# Ten times what trainings with Adam and its relatives use, of all weights and of an adapter; a
# virtual token has few weights, and takes far larger steps. SGD has no such bound: its steps grow
# with the gradients.
_HIGHEST_RATE = 1e-2
_HIGHEST_RATE_OF_METHOD = {"lora": 0.1, "ia3": 0.3, "prefix-tuning": 1.0, "prompt-tuning": 3.0}
_WITHOUT_BOUND = ("sgd", "adagrad", "adafactor")


def warnings(spec: JobSpec, settings: Settings, database: Database) -> list[SpecWarning]:
    """Those of a valid spec, in the order of their paths."""
    return [
        *_missing_gpus(spec, settings, database),
        *_lacking_workers(spec, settings, database),
        *_steps_not_reached(spec),
        *_worse_is_kept(spec),
        *_threshold_without_effect(spec),
        *_rate_too_high(spec),
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


def _lacking_workers(
    spec: JobSpec, settings: Settings, database: Database
) -> Iterator[SpecWarning]:
    """Of a spec that was forced; any other is refused for it (service/api/faults/semantic.py)."""
    for lack in live_workers.lacks(spec, settings, database):
        message = f"{lack.message}. Until then the training fails"
        yield SpecWarning(path=lack.path, code=live_workers.CODE, message=message)


def _steps_not_reached(spec: JobSpec) -> Iterator[SpecWarning]:
    """Only if the spec alone decides how many steps there are; else the training itself reports
    it."""
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


def _threshold_without_effect(spec: JobSpec) -> Iterator[SpecWarning]:
    task = spec.task
    if not isinstance(task, QuestionAnsweringSpec) or task.version_2_with_negative:
        return
    if task.null_score_diff_threshold != 0:
        yield SpecWarning(
            path="task.null_score_diff_threshold",
            code="no_effect",
            message="without `task.version_2_with_negative: true` every question has an answer, "
            "and `task.null_score_diff_threshold` is not used",
        )


def _rate_too_high(spec: JobSpec) -> Iterator[SpecWarning]:
    rate, optimizer = spec.training.learning_rate, spec.training.optim
    method = None if spec.peft is None else spec.peft.method
    highest = _HIGHEST_RATE if method is None else _HIGHEST_RATE_OF_METHOD[method]
    if not spec.trains or optimizer.startswith(_WITHOUT_BOUND) or rate <= highest:
        return
    trained = "all weights" if method is None else f"`peft.method: {method}`"
    yield SpecWarning(
        path="training.learning_rate",
        code="rate_too_high",
        message=f"with {optimizer} and {trained} a `training.learning_rate` above {highest:g} "
        f"rarely learns anything, and it is {rate:g}",
    )
