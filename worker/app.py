"""The Celery application of a worker and its signals."""

import os
import signal
import socket
import threading
from importlib.metadata import version
from typing import Any, Final

import structlog
from celery import signals
from celery.app.amqp import AMQP
from celery.loaders.app import AppLoader
from kombu.connection import Connection

from service import broker, logging
from service.settings import get_settings
from service.store.scheduling.registration import WorkerInfo
from worker.devices.gpus import devices
from worker.lifecycle import registration, start_check
from worker.lifecycle.registration import Registration
from worker.lifecycle.shutdown import Shutdown
from worker.sandbox import layers
from worker.supervision.limits import stage_group

# Celery's own delays grow to half a minute: too long once the broker is reachable again.
RECONNECT_SECONDS: Final = 4.0
# Added to the grace of the running stages, so that their last events can be recorded.
_SHUTDOWN_SECONDS: Final = 10.0
_UNREGISTER_SECONDS: Final = 5.0

log = structlog.get_logger(__name__)


class _Connection(Connection):
    def ensure_connection(self, *args: Any, **options: Any) -> Any:
        options["interval_max"] = RECONNECT_SECONDS
        return super().ensure_connection(*args, **options)


class _Amqp(AMQP):
    """Celery creates its connections from this class."""

    Connection = _Connection


class _Loader(AppLoader):
    def import_from_cwd(self, module: str, **_: object) -> Any:
        """Celery's own looks into the current folder first, as do all imports inside of it."""
        return self.import_module(module)


_settings = get_settings()
SHUTDOWN = Shutdown()

# The URL without a setting is never used: `python -m worker` refuses to start.
app = broker.make_app(
    _settings.redis_url.get_secret_value() if _settings.redis_url else "redis://", publisher=False
)
app.amqp_cls = _Amqp
app.loader_cls = _Loader
app.conf.update(
    imports=["worker.run"],
    # The job's row decides who runs it, so a message is done as soon as a worker reads it.
    task_acks_late=False,
    worker_prefetch_multiplier=1,
    # Otherwise a busy worker holds a message that a free one could process.
    worker_disable_prefetch=True,
    worker_enable_remote_control=False,
    worker_send_task_events=False,
    worker_hijack_root_logger=False,
    worker_redirect_stdouts=False,
    worker_cancel_long_running_tasks_on_connection_loss=False,
)

_registration: Registration | None = None


@signals.setup_logging.connect
def _configure_logging(**_: Any) -> None:
    logging.configure(_settings)


@signals.worker_init.connect
def _prepare_groups(**_: Any) -> None:
    stage_group.prepare()


@signals.worker_ready.connect
def _register(sender: Any, **_: Any) -> None:
    global _registration
    info = WorkerInfo(
        id=sender.hostname,
        hostname=socket.gethostname(),
        pid=os.getpid(),
        queues=sorted(app.amqp.queues.consume_from),
        devices=devices(),
        slots=sender.controller.concurrency,
        has_hub_token=_settings.hub_token is not None,
        packages=registration.packages(),
        version=version("finetune-service"),
    )
    _registration = Registration(_settings.sqlalchemy_url, info, _settings.beat_seconds)
    _registration.start()
    for gap in layers.missing(_settings):
        log.warning("sandbox.incomplete", a_stage_could=gap)
    log.info("limits.ready", held_by=stage_group.prepare())
    if _settings.doctor_at_start:
        start_check.start(_registration.set_doctor_report)
    # At a second SIGINT Celery would kill its pool and the supervisors in it.
    signal.signal(signal.SIGINT, signal.getsignal(signal.SIGTERM))


@signals.worker_shutting_down.connect
def _stop_stages(**_: Any) -> None:
    SHUTDOWN.request()
    grace = _settings.drain_grace_seconds + _settings.stop_grace_seconds
    timer = threading.Timer(grace + _SHUTDOWN_SECONDS, _force_exit)
    timer.daemon = True
    timer.start()


def _force_exit() -> None:
    """Exit although the pool has not ended.

    Celery waits for its pool without a limit: for a process that hangs, or for the answer of one
    that was killed before it could acknowledge its message. Whatever still runs dies with this
    process, and its job is recovered as after any worker's death.
    """
    log.error("pool.hung")
    # On a thread: if the database is unreachable too, the reconciler removes this worker's row.
    unregister = threading.Thread(target=_unregister, daemon=True)
    unregister.start()
    unregister.join(_UNREGISTER_SECONDS)
    os._exit(os.EX_TEMPFAIL)


@signals.worker_shutdown.connect
def _unregister(**_: Any) -> None:
    if _registration is not None:
        _registration.stop()
