"""What each stage sees: the least that it needs (docs/sandbox.md has the table).

A stage's result is untrusted input: a later stage is shown a folder that `prepare` named only if
`require_own` has found it among the job's files.
"""

import os
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from pydantic import ValidationError

from service.contract.failures import FailureCode, StageError
from service.contract.stage import home_paths, prepared_data, project_cache
from service.contract.stage.events import Finished
from service.contract.stage.stages import (
    BaseJob,
    PrepareResult,
    PublishResult,
    StageRequest,
    TrainResult,
)
from service.contract.states import Stage
from service.settings import Settings
from worker.sandbox import layers, machine
from worker.sandbox.view import View
from worker.supervision.limits import stage_limits

_PREPARED: Final = (*project_cache.DOWNLOADS, prepared_data.FOLDER)
_MEASURED: Final = (
    prepared_data.COMPILED,
    prepared_data.REFERENCE,
    project_cache.EQUIVALENCE,
)
_CPU_LOCK: Final = Path("devices") / "cpu.lock"
CHECKPOINT_SETTINGS: Final = "hub"
"""In an attempt's folder: `hub_repository.settings_dir`, a module that loads the Hub's library."""
_SHARED_MEMORY: Final = Path("/dev/shm")
_PORTS: Final = {"http": 80, "https": 443, "socks5": 1080, "socks5h": 1080}
_ALWAYS: Final = (53, 80, 443)
"""DNS over TCP, and where the Hub's own storage answers, which has other names."""


def require_sandbox(settings: Settings) -> None:
    """Raises StageError(sandbox_incomplete) if FINETUNE_SANDBOX is `require` and cannot be had."""
    try:
        layers.require(settings)
    except layers.SandboxError as error:
        raise StageError(FailureCode.SANDBOX_INCOMPLETE, str(error)) from error


def of_stage(
    settings: Settings,
    request: StageRequest,
    environment: Mapping[str, str],
    *,
    private: Path | None = None,
    stage: Stage | None = None,
) -> View:
    """`private`: the stage's own temporary folder. `stage`: publish for a push while training,
    whose request is the training's; it writes nothing into the attempt.
    """
    stage = stage or request.stage
    own = [request.attempt_dir] if stage is request.stage else []
    write = [*own, *([private] if private else []), *_writable(request, environment, stage)]
    for folder in write:
        _make(folder)
    return View(
        layers.used(settings),
        read=(
            *machine.readable(environment),
            *settings.sandbox_read,
            request.workspace,
            *_readable(request, environment, stage),
        ),
        write=(*write, _SHARED_MEMORY),
        listed=machine.import_folders(),
        devices=machine.devices(with_gpus=stage is Stage.TRAIN and bool(request.gpus)),
        network=stage is not Stage.TRAIN,
        ports=tuple(_ports(request, environment, stage)),
        ranks=request.spec.resources.processes > 1,
        shared_memory_bytes=stage_limits.shared_memory(settings),
        guarded=tuple(_guarded(request, environment)),
    )


def of_prediction(
    settings: Settings,
    request: StageRequest,
    environment: Mapping[str, str],
    private: Path,
    shown: Iterable[Path],
) -> View:
    """`request`: of `train` for a model that a job has trained, of `prepare` for a base model;
    `shown`: what else it may read. Only a model of the Hub may be downloaded."""
    name = request.spec.model.name_or_path
    downloads = request.stage is Stage.PREPARE and not (name or "").startswith("/")
    write = [private, *(_writable(request, environment, Stage.PREPARE) if downloads else ())]
    for folder in write:
        _make(folder)
    return View(
        layers.used(settings),
        read=(*machine.readable(environment), *settings.sandbox_read, *shown),
        write=(*write, _SHARED_MEMORY),
        listed=machine.import_folders(),
        devices=machine.devices(with_gpus=bool(request.gpus)),
        network=downloads,
        ports=tuple(_ports(request, environment, request.stage)) if downloads else (),
        shared_memory_bytes=stage_limits.shared_memory(settings),
        guarded=tuple(_guarded(request, environment)),
    )


def _guarded(request: StageRequest, environment: Mapping[str, str]) -> Iterator[Path]:
    """All folders that some stage can write into."""
    yield request.workspace.parent
    yield Path(environment["HF_HOME"])
    for cache in {request.cache_dir, request.project_cache}:
        yield from (cache / name for name in (*_PREPARED, *_MEASURED))


def _writable(
    request: StageRequest, environment: Mapping[str, str], stage: Stage
) -> Iterator[Path]:
    cache, hub_home = request.project_cache, Path(environment["HF_HOME"])
    match stage:
        case Stage.PREPARE:
            yield from (cache / name for name in _PREPARED)
            yield hub_home
        case Stage.TRAIN:
            yield from (cache / name for name in _MEASURED)
            yield request.cache_dir / _CPU_LOCK
        case Stage.PUBLISH:
            yield hub_home / "xet"


def _readable(
    request: StageRequest, environment: Mapping[str, str], stage: Stage
) -> Iterator[Path]:
    yield Path(environment["HF_HOME"]) / "modules"
    if stage is Stage.PREPARE:
        yield from (*request.data_roots, *request.model_roots, *request.files.values())
        if request.resume_source is not None:
            yield request.resume_source.folder
        yield from _of_other_job(request.base_job)
    if request.resume_from is not None:
        yield request.resume_from
    if request.prepared is not None:
        yield request.prepared.prepared_dir
        yield from _of_other_job(request.prepared.base_job)
        for folder in {request.prepared.model_dir, request.prepared.tokenizer_dir}:
            yield from with_links(folder, request)


def _of_other_job(base: BaseJob | None) -> Iterator[Path]:
    if base is not None:
        yield base.folder
        yield base.folder.parents[1] / CHECKPOINT_SETTINGS
        if base.finished is not None:
            yield base.finished


def with_links(folder: Path, request: StageRequest) -> Iterator[Path]:
    """`folder` and the files of the job's that its links lead to: a snapshot of the Hub's cache
    consists of links, and so does a model with another configuration."""
    yield folder
    allowed = _roots(request)
    if folder.is_dir():
        for path in folder.rglob("*"):
            target = path.resolve()
            if path.is_symlink() and _is_within(target, allowed):
                yield target


def require_own(request: StageRequest, outcome: Finished) -> None:
    """Raises StageError(stage_untrustworthy) if the result names files that are not the job's."""
    try:
        if request.stage is Stage.PREPARE:
            _require_own_inputs(request, PrepareResult.model_validate(outcome.result))
        elif request.stage is Stage.TRAIN:
            _require_own_output(request, TrainResult.model_validate(outcome.result))
        else:
            PublishResult.model_validate(outcome.result)
    except ValidationError as error:
        message = f"The result of `{request.stage}` has another form than it must have"
        raise StageError(FailureCode.STAGE_UNTRUSTWORTHY, message) from error


def _require_own_output(request: StageRequest, result: TrainResult) -> None:
    folder = request.workspace / (result.output_dir or "")
    if not folder.resolve().is_relative_to(request.workspace.resolve()):
        message = f"`train` has reported a model outside of its job's folder: {folder}"
        raise StageError(FailureCode.STAGE_UNTRUSTWORTHY, message)


def _require_own_inputs(request: StageRequest, result: PrepareResult) -> None:
    allowed = _own_roots(request)
    named = {result.prepared_dir, result.model_dir, result.tokenizer_dir}
    if result.resume_source is not None:
        named.add(result.resume_source.folder)
    foreign = sorted(
        str(path)
        for path in named
        if not (home_paths.is_below(path, request.home) and _is_within(path.resolve(), allowed))
    )
    if foreign or result.base_job not in (None, request.base_job):
        raise StageError(
            FailureCode.STAGE_UNTRUSTWORTHY,
            "`prepare` has reported files that are not this job's",
            files=foreign[:5],
        )


def _roots(request: StageRequest) -> list[Path]:
    """Where a job's inputs may be."""
    others = [*_of_other_job(request.base_job)]
    if request.prepared is not None:
        others += _of_other_job(request.prepared.base_job)
    return [*_own_roots(request), *(path.resolve() for path in (*request.model_roots, *others))]


def _own_roots(request: StageRequest) -> list[Path]:
    """Where `prepare` leaves files for its job: below the home."""
    caches = [request.project_cache / name for name in _PREPARED]
    return [path.resolve() for path in (request.workspace, *caches)]


def _is_within(path: Path, roots: list[Path]) -> bool:
    return any(path.is_relative_to(root) for root in roots)


def _ports(request: StageRequest, environment: Mapping[str, str], stage: Stage) -> Iterator[int]:
    if stage is Stage.TRAIN:
        return
    yield from _ALWAYS
    urls = [environment.get("HF_ENDPOINT"), request.hub_endpoint]
    names = ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY")
    urls += [os.environ.get(each) for name in names for each in (name, name.lower())]
    if stage is Stage.PUBLISH:
        urls.append(request.mlflow_uri)
    for url in urls:
        parts = urlsplit(url or "")
        port = parts.port or _PORTS.get(parts.scheme)
        if port is not None:
            yield port


def _make(path: Path) -> None:
    """Before the view holds: a stage can fill a folder that exists, but not make another
    one next to it."""
    if path.suffix == ".lock":
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
    else:
        with suppress(FileExistsError):  # a stage has put something else there
            path.mkdir(parents=True, exist_ok=True)
