"""What a job needs and none of the live workers that could claim its training has."""

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from service.contract import routing
from service.contract.fields.section import UnknownValueError
from service.contract.spec.spec import JobSpec
from service.contract.states import Stage
from service.contract.worker_needs import NEEDS, Need
from service.settings import Settings
from service.store.database import Database
from service.store.scheduling.fleet import Fleet, LiveWorker

CODE: Final = "no_able_worker"


class Lack(NamedTuple):
    path: str
    message: str
    """Without a full stop at its end."""


def lacks(job: JobSpec, settings: Settings, database: Database) -> Iterator[Lack]:
    """`job` may be the valid part of a spec.

    Nothing is lacking where no live worker could claim the training: the job waits for one, of
    which nothing is known. A worker that does not report its packages counts as having them.
    """
    needs = list(_needs(job))
    able = _able(job, settings, database) if needs else []
    if not able:
        return
    for need in needs:
        having = [worker for worker in able if _has(worker, need)]
        if having:
            able = having  # one worker must have all of it
        else:
            yield Lack(need.path, _sentence(need))


def _needs(job: JobSpec) -> Iterator[Need]:
    for needs in NEEDS:
        try:
            yield from needs(job)
        except UnknownValueError:  # its section has a fault of its own
            continue


def _able(job: JobSpec, settings: Settings, database: Database) -> Sequence[LiveWorker]:
    try:
        queue, gpus = routing.queue_for(Stage.TRAIN, job), job.resources.gpus or 0
    except UnknownValueError:
        return []
    with database.read() as session:
        return Fleet.read(session.connection(), settings.alive_seconds).can_run(queue, gpus)


def _has(worker: LiveWorker, need: Need) -> bool:
    if need.package is None:
        return worker.most_gpus > 0
    return worker.packages is None or need.package in worker.packages


def _sentence(need: Need) -> str:
    what, it = ("a GPU", "one") if need.package is None else (f"the package {need.package}", "it")
    return (
        f"`{need.option}` needs {what}, and no live worker that could run the job has {it}: "
        f"{need.remedy}"
    )
