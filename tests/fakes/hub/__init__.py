"""A Hub of our own on the loopback, for the real `huggingface_hub` client.

`with HubDouble() as hub:` serves the routes that the client calls with HF_HUB_DISABLE_XET=1:
creating, committing (regular and LFS files), branches, and all reading. Content lives in memory.
`hub.requests` and `hub.repo(...).commits` record what happened; `hub.fail(...)` injects faults.
"""

import threading
from collections.abc import Mapping
from http.server import ThreadingHTTPServer
from pathlib import Path
from typing import Self

from tests.fakes.hub import lfs, reading, writing
from tests.fakes.hub.content import Repo
from tests.fakes.hub.state import HubState, Request

__all__ = ["HubDouble", "Repo", "Request"]


class _Handler(writing.Writing, lfs.Lfs, reading.Reading):
    ROUTES = writing.ROUTES + lfs.ROUTES + reading.ROUTES


class HubDouble(HubState):
    def __init__(self, tokens: Mapping[str, set[str]] | None = None) -> None:
        super().__init__(tokens)
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
        self._server.daemon_threads = True
        self._server.hub = self  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,))
        self.endpoint = f"http://127.0.0.1:{self._server.server_address[1]}"

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """Variables that turn the client in a child process to this Hub, with its own cache."""
        variables = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HOME": str(home),
        }
        return variables | ({"HF_TOKEN": token} if token else {})
