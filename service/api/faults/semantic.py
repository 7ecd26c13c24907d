"""Faults that only this server can find: missing files and jobs, folders not allowed."""

import json
from collections.abc import Callable, Collection, Iterator, Sequence
from functools import partial
from itertools import chain, islice
from operator import attrgetter
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

from pydantic import BaseModel

from service.api.faults import live_workers
from service.api.faults.collect import Findings
from service.api.faults.redaction import cut, shown
from service.api.faults.shorten import MOST_FAULTS
from service.api.faults.walk import Path as FaultPath
from service.api.faults.walk import dotted
from service.api.schemas.problems import Fault
from service.contract import resume_differences
from service.contract.fields.paths import PathNotAllowedError, resolve_under_roots
from service.contract.fields.section import UnknownValueError
from service.contract.roles import DEFAULT_PROJECT
from service.contract.spec.dataset import PathDataset, UploadDataset
from service.contract.spec.spec import JobSpec
from service.errors import SourceJobError
from service.settings import Settings
from service.store.database import Database
from service.store.files import files
from service.store.jobs import lineage, queries
from service.store.projects import secrets
from service.store.scope import Scope
from service.webhooks.addresses import Allowed, ReceiverNotAllowedError, check_url

_MODEL_FIELDS = ("name_or_path", "tokenizer_name", "config_name")
_PATH_STARTS = ("/", ".", "~")
_SPLITS = ("train", "validation", "test")
T = TypeVar("T")


class _Store(NamedTuple):
    """What the new job may use of the database."""

    database: Database
    scope: Scope


def check(
    findings: Findings,
    given: Any,
    settings: Settings,
    database: Database,
    scope: Scope,
    pending_files: Collection[str] = (),
    *,
    force: bool = False,
) -> list[Fault]:
    """The faults of the findings about `given` together with these, at most MOST_FAULTS, in the
    order of their paths.

    `pending_files` are ids that count as uploaded. `force`: without what the live workers lack.
    """
    job = findings.valid_part
    if job is None:
        return findings.faults
    faulty = {fault.path for fault in findings.faults}
    store = _Store(database, scope)
    every = chain(
        _model_paths(job, settings.model_roots),
        _source_job(job, store),
        _resumed_job(job, faulty, store),
        _secrets(job, store),
        _hub_token(job, settings, store),
        _webhooks(job, settings, store),
        _timeout(job, settings),
        () if force else _lacking_workers(job, settings, database),
        _data(job, given, faulty, settings, store, pending_files),
    )
    found = list(islice(every, MOST_FAULTS - len(findings.faults)))
    return sorted([*findings.faults, *found], key=lambda fault: fault.path)


def _known(read: Callable[[], T]) -> T | None:
    """The value that `read` finds; None if it is unknown."""
    try:
        return read()
    except UnknownValueError:
        return None


def _data(
    job: JobSpec,
    given: Any,
    faulty: set[str],
    settings: Settings,
    store: _Store,
    pending_files: Collection[str],
) -> Iterator[Fault]:
    dataset = _known(lambda: job.dataset)
    if isinstance(dataset, UploadDataset):
        items = _items(given["dataset"], faulty)
        wanted = [item for item in items if item[1] not in pending_files]
        yield from _unknown_files(wanted, store)
    elif isinstance(dataset, PathDataset):
        for path, value in _items(given["dataset"], faulty):
            yield from _allowed(path, value, settings.data_roots, "FINETUNE_DATA_ROOTS")


def _items(given: dict[str, Any], faulty: set[str]) -> Iterator[tuple[FaultPath, str]]:
    """The file ids or paths of a dataset that are valid, also where others of a list are not."""
    for split in _SPLITS:
        yield from _items_at(("dataset", split), given.get(split), faulty)


def _items_at(place: FaultPath, given: Any, faulty: set[str]) -> Iterator[tuple[FaultPath, str]]:
    if dotted(place) in faulty:
        return
    if isinstance(given, dict):  # validation sets by name
        for name, values in given.items():
            yield from _items_at((*place, name), values, faulty)
        return
    for index, value in enumerate([given] if isinstance(given, str) else given or ()):
        if dotted((*place, index)) not in faulty:
            yield (*place, index), value


def _unknown_files(wanted: list[tuple[FaultPath, str]], store: _Store) -> Iterator[Fault]:
    with store.database.read() as session:
        known = files.existing(session, store.scope, [file_id for _, file_id in wanted])
    for path, file_id in wanted:
        if file_id not in known:
            message = "the file does not exist: upload it with POST /v1/files"
            yield _fault(path, "unknown_file", message, file_id)


def _model_paths(job: JobSpec, roots: Sequence[Path]) -> Iterator[Fault]:
    for name in _MODEL_FIELDS:
        value = _known(partial(attrgetter(f"model.{name}"), job))
        if value is not None and value.startswith(_PATH_STARTS):
            yield from _allowed(("model", name), value, roots, "FINETUNE_MODEL_ROOTS")


def _source_job(job: JobSpec, store: _Store) -> Iterator[Fault]:
    model = _known(lambda: (job.model.job, job.model.checkpoint))
    job_id, checkpoint = model or (None, None)
    if job_id is None:
        return
    try:
        with store.database.read() as session:
            lineage.model_of(session, store.scope, job_id, checkpoint)
    except SourceJobError as error:
        yield _source_fault(("model",), error, job_id, checkpoint)


def _resumed_job(job: JobSpec, faulty: set[str], store: _Store) -> Iterator[Fault]:
    resumed = _known(lambda: job.training.resume_from)
    wanted = _known(lambda: resumed and (resumed.job, resumed.checkpoint))
    if not wanted:
        return
    with store.database.read() as session:
        try:
            lineage.checkpoint_of(session, store.scope, *wanted)
        except SourceJobError as error:
            yield _source_fault(("training", "resume_from"), error, *wanted)
        source = lineage.spec_of(session, store.scope, wanted[0])
    if source is None or not source.trains:
        return
    for path, ours, theirs in resume_differences.differences(job, source):
        where = dotted(path)
        if any(fault == where or fault.startswith(f"{where}.") for fault in faulty):
            continue
        message = (
            f"`training.resume_from` continues job {wanted[0]}, where this is {_text(theirs)}: "
            "use the same value, or start from the checkpoint's model only (`model.job`)"
        )
        yield _fault(path, "resume_mismatch", message, _text(ours))


def _secrets(job: JobSpec, store: _Store) -> Iterator[Fault]:
    name = _known(lambda: job.hub_token_secret)
    if not name:
        return
    with store.database.read() as session:
        known = [row.name for row in secrets.list_all(session, store.scope)]
    if name not in known:
        message = "the project has no such secret: set it with `finetune secrets set`"
        yield _fault(("secrets", "hub_token"), "secret_not_found", message, name)


def _webhooks(job: JobSpec, settings: Settings, store: _Store) -> Iterator[Fault]:
    given = _known(lambda: [(each.url, each.secret) for each in job.webhooks])
    if not given:
        return
    allowed = Allowed.parse(settings.webhook_allow)
    with store.database.read() as session:
        known = {row.name for row in secrets.list_all(session, store.scope)}
    for place, (url, secret) in enumerate(given):
        try:
            check_url(url, allowed)
        except ReceiverNotAllowedError as error:
            yield _fault(("webhooks", place, "url"), "receiver_not_allowed", str(error), url)
        if secret not in known:
            message = "the project has no such secret: set it with `finetune secrets set`"
            path = ("webhooks", place, "secret")
            yield _fault(path, "secret_not_found", message, secret)


def _hub_token(job: JobSpec, settings: Settings, store: _Store) -> Iterator[Fault]:
    if _known(lambda: job.hub) is not None and not _known(lambda: job.hub_token_secret):
        own = "store one with `finetune secrets set` and name it in `secrets.hub_token`, or "
        otherwise = ", or leave out `hub` and push later with `finetune publish`"
        yield from hub_token(settings, store.database, store.scope, own, otherwise)


def hub_token(
    settings: Settings, database: Database, scope: Scope, own: str = "", otherwise: str = ""
) -> Iterator[Fault]:
    """A fault if there are live workers and none can push with the operator's token. `own`: how
    the user can give the job a token, `otherwise`: what he can do without one."""
    if scope.project not in (None, DEFAULT_PROJECT):
        message = (
            "Jobs of this project do not have the operator's Hub token: set one with `finetune "
            "secrets set`, and name it in `secrets.hub_token`"
        )
        yield Fault(path="hub", code="no_hub_token", message=message + otherwise)
        return
    if settings.hub_token is not None:
        return
    with database.read() as session:
        workers = queries.live_workers(session, settings.alive_seconds)
    if workers and not any(worker.has_hub_token for worker in workers):
        message = (
            f"No Hub token is set: {own}set FINETUNE_HUB_TOKEN and restart the workers{otherwise}"
        )
        yield Fault(path="hub", code="no_hub_token", message=message)


def _lacking_workers(job: JobSpec, settings: Settings, database: Database) -> Iterator[Fault]:
    for lack in live_workers.lacks(job, settings, database):
        message = f"{lack.message}. With `force` the spec is accepted all the same"
        yield Fault(path=lack.path, code=live_workers.CODE, message=message)


def _timeout(job: JobSpec, settings: Settings) -> Iterator[Fault]:
    given, longest = _known(lambda: job.timeout_seconds), settings.longest_timeout_seconds
    if given is not None and longest is not None and given > longest:
        message = f"At most {longest:g} s here (FINETUNE_LONGEST_TIMEOUT_SECONDS)"
        yield Fault(path="timeout_seconds", code="timeout_too_long", message=message)


def _text(value: Any) -> str:
    """A value as it is written in a spec."""
    if isinstance(value, BaseModel):
        value = value.model_dump(mode="json", exclude_none=True)
    return cut(value if isinstance(value, str) else json.dumps(value))


def _source_fault(
    place: FaultPath, error: SourceJobError, job_id: str, checkpoint: str | int | None
) -> Fault:
    reason = str(error.extra["reason"])
    of_checkpoint = reason in ("unknown_checkpoint", "checkpoint_gone")
    path = (*place, "checkpoint" if of_checkpoint else "job")
    given = str(checkpoint) if of_checkpoint else job_id
    return _fault(path, reason, error.detail, given)


def _allowed(path: FaultPath, value: str, roots: Sequence[Path], setting: str) -> Iterator[Fault]:
    try:
        resolve_under_roots(value, roots, setting)
    except PathNotAllowedError as error:
        yield _fault(path, "path_not_allowed", str(error), value)


def _fault(path: FaultPath, code: str, message: str, given: str) -> Fault:
    where = dotted(path)
    return Fault(path=where, code=code, message=message, given=shown(where, given))
