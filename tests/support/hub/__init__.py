"""A Hub of our own on the loopback, for the real `huggingface_hub` client.

`with HubDouble() as hub:` serves the routes that the client calls with HF_HUB_DISABLE_XET=1:
whoami, creating, committing (regular and LFS files), branches, and all reading. Content lives in
memory.
`hub.requests` and `hub.repo(...).commits` record what happened; `hub.fail(...)` injects faults.
"""

from collections.abc import Mapping
from pathlib import Path

from tests.support.hub import lfs, reading, writing
from tests.support.hub.content import Repo
from tests.support.hub.state import HubState, Request
from tests.support.servers.local_http import LocalServer

__all__ = ["HubDouble", "Repo", "Request"]


class _Handler(writing.Writing, lfs.Lfs, reading.Reading):
    ROUTES = writing.ROUTES + lfs.ROUTES + reading.ROUTES


class HubDouble(HubState, LocalServer):
    def __init__(self, tokens: Mapping[str, set[str]] | None = None) -> None:
        HubState.__init__(self, tokens)
        LocalServer.__init__(self, _Handler)
        self.endpoint = self.url

    def environment(self, home: Path, token: str | None = None) -> dict[str, str]:
        """Variables that turn the client in a child process to this Hub, with its own cache."""
        variables = {
            "HF_ENDPOINT": self.endpoint,
            "HF_HUB_DISABLE_XET": "1",
            "HF_HUB_DISABLE_TELEMETRY": "1",
            "HF_HOME": str(home),
        }
        return variables | ({"HF_TOKEN": token} if token else {})
