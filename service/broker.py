"""The Celery application that API, reconciler and worker share, and how a job is enqueued."""

from typing import Any, Final

from celery import Celery
from kombu.exceptions import OperationalError

from service.contract.routing import (
    CPU_QUEUE,
    PREDICT_QUEUE,
    PREVIEW_QUEUE,
    QUEUES,
    WAKE_TASK,
    Message,
)

CONNECT_SECONDS: Final = 0.4
ANSWER_SECONDS: Final = 0.6

# Limits of a publisher; a worker's connection waits for messages and has none.
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
    """A new Celery application; `publisher` bounds the time that a send may take."""
    app = Celery("finetune", broker=redis_url, set_as_current=not publisher)
    options = _PRIORITY_OPTIONS | (_PUBLISH_OPTIONS if publisher else {})
    app.conf.update(
        task_serializer="json",
        accept_content=["json"],
        task_ignore_result=True,
        task_queues={
            name: {"exchange": name, "routing_key": name}
            for name in (*QUEUES, PREVIEW_QUEUE, PREDICT_QUEUE)
        },
        task_default_queue=CPU_QUEUE,
        task_create_missing_queues=False,
        broker_transport_options=options,
        broker_connection_retry_on_startup=True,
        broker_connection_max_retries=None,
    )
    return app


def enqueue(app: Celery, message: Message) -> bool:
    """Send the wake-up message; False when the broker is unreachable: the row is the outbox.

    Tried twice: the first try may use a connection from before a restart of the broker.
    """
    try:
        app.send_task(
            WAKE_TASK,
            args=[message.kind.value, message.id],
            queue=message.queue,
            priority=message.priority,
            retry=True,
            retry_policy={"max_retries": 1, "interval_start": 0, "interval_step": 0},
            ignore_result=True,
        )
    except (OperationalError, OSError):
        return False
    return True
