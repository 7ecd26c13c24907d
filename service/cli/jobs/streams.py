"""A job's live streams, for commands that follow it. Where too many are open, commands poll."""

import threading
from collections.abc import Callable, Iterator
from typing import Self

from finetune_client.errors import FineTuneError
from finetune_client.http.streams import Place

from service.cli.terminal.client import Client, Json


def log_parts(client: Client, job_id: str, offset: int, lost: Callable[[], None]) -> Iterator[Json]:
    """What the stages print from byte `offset` on, until the job has ended; `lost` is called while
    the service does not answer. RateLimitError where too many are open: poll instead."""
    path = f"/v1/jobs/{job_id}/logs/stream"
    for message in client.messages(path, Place(offset), lambda _error: lost()):
        if message.id is not None:
            yield message.json()


class Changes:
    """Says when a job has changed; use as a context manager. A thread reads the stream."""

    def __init__(self, client: Client, job_id: str) -> None:
        self._client = client
        self._path = f"/v1/jobs/{job_id}/events/stream"
        self._changed = threading.Event()
        self._is_connected = False
        self._is_stopped = False
        # It may wait for a message when the command ends.
        self._thread = threading.Thread(target=self._read, name="live-stream", daemon=True)

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._is_stopped = True

    def happened(self, seconds: float) -> bool:
        """Whether the job may have changed since the last call; waits at most `seconds` for it.
        Always true while the stream is disconnected."""
        changed = self._changed.wait(seconds) or not self._is_connected
        self._changed.clear()
        return changed

    def _read(self) -> None:
        try:
            for _message in self._client.messages(self._path, Place(), self._lost):
                if self._is_stopped:
                    return
                self._is_connected = True
                self._changed.set()
        except FineTuneError:
            return  # what the command asks for next has the same error, or is polled
        except RuntimeError:
            if not self._is_stopped:  # otherwise the client was closed meanwhile
                raise
        finally:
            self._is_connected = False
            self._changed.set()

    def _lost(self, _error: FineTuneError) -> None:
        self._is_connected = False
