"""How API, reconciler and worker speak to the broker: one set of Celery options for all."""

from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError

from service.contract.routing import CPU_QUEUE, QUEUES, WAKE_TASK

CONNECT_SECONDS: Final = 0.4
ANSWER_SECONDS: Final = 0.6

# What a publisher may take; a worker's own connection waits for messages and has no such limit.
_PUBLISH_OPTIONS: Final[dict[str, Any]] = {
    "socket_connect_timeout": CONNECT_SECONDS,
    "socket_timeout": ANSWER_SECONDS,
    "max_retries": 0,
}
_PRIORITY_OPTIONS: Final[dict[str, Any]] = {
    # One Redis list for each priority; 0 is served first.
    "priority_steps": list(range(10)),
    "queue_order_strategy": "priority",
    "sep": ":",
}


def make_app(redis_url: str, *, publisher: bool) -> Celery:
    """A Celery application of its own; `publisher` bounds the time that a send may take."""
    app = Celery("finetune", broker=redis_url, set_as_current=not publisher)
    options = _PRIORITY_OPTIONS | (_PUBLISH_OPTIONS if publisher else {})
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_queues={name: {"exchange": name, "routing_key": name} for name in QUEUES},
        task_default_queue=CPU_QUEUE,
        task_create_missing_queues=False,
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
    )
    return app


def ring(app: Celery, job_id: str, queue: str, priority: int) -> bool:
    """Send the wake-up by name; False when the broker is away: the row is the outbox.

    Tried twice, because a connection from before the broker's restart says nothing about now.
    """
    try:
        app.send_task(
            WAKE_TASK,
            args=[job_id],
            queue=queue,
            priority=priority,
            retry=True,
            retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0},
            ignore_result=True,
        )
    except (OperationalError, OSError):
        return False
    return True
