"""Messages that no part of the service sends."""

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Final

from kombu.connection import Connection
from kombu.entity import Exchange
from kombu.messaging import Producer

from service.contract.routing import WAKE_TASK

SIGNS: Final = ("ContentDisallowed", "DecodeError", "os.system", "TypeError")
"""Parts of the worker's log entries about them."""


class Trap:
    """Unpickling it makes a file at `path`."""

    def __init__(self, path: str) -> None:
        self.path = path

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return Path.touch, (Path(self.path),)


def send_forged(broker_url: str, trap: Path) -> None:
    """Put a pickle, broken JSON, wrong arguments, an unknown kind and task into the queue `cpu`."""
    headers = {"task": WAKE_TASK, "id": "x", "lang": "py", "argsrepr": "", "root_id": "x"}
    forged = [
        (pickle.dumps(Trap(str(trap))), "application/x-python-serialize", "binary", headers),
        (b"{", "application/json", "utf-8", headers),
        (b'[["a", "b", "c"], {}, {}]', "application/json", "utf-8", headers),
        (b'[["no kind", "a"], {}, {}]', "application/json", "utf-8", headers),
        (b'[["job", {"no": "id"}], {}, {}]', "application/json", "utf-8", headers),
        (b"[[], {}, {}]", "application/json", "utf-8", {**headers, "task": "os.system"}),
    ]
    options = {"sep": ":", "priority_steps": list(range(10))}
    with Connection(broker_url, transport_options=options) as connection:
        producer = Producer(connection, Exchange("cpu"), routing_key="cpu")
        for body, kind, encoding, head in forged:
            producer.publish(
                body, content_type=kind, content_encoding=encoding, headers=head, priority=0
            )
