"""uvicorn in a thread of the test's process."""

import asyncio
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

import uvicorn

from tests.support.servers.services import wait_until

_STEP: Final = 0.005
_STEPS: Final = 20


class QuickServer(uvicorn.Server):
    """Ends as soon as it has nothing left to do, where uvicorn sleeps for a fifth of a second."""

    async def main_loop(self) -> None:
        self._tasks_when_idle = len(asyncio.all_tasks())
        ended = await self.on_tick(0)
        while not ended:
            await asyncio.sleep(_STEP)
            ended = await self.on_tick(0)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        for server in self.servers:
            server.close()
        for connection in list(self.server_state.connections):
            connection.shutdown()
        for _ in range(_STEPS):
            if self._is_idle():
                await self.lifespan.shutdown()
                return
            await asyncio.sleep(_STEP)
        await super().shutdown(sockets)

    def _is_idle(self) -> bool:
        """Also what continues after an answer has ended, such as noting the use of a key."""
        return not self.server_state.connections and (
            len(asyncio.all_tasks()) <= self._tasks_when_idle
        )


@contextmanager
def serving(config: uvicorn.Config) -> Iterator[str]:
    """The URL of a server with this configuration."""
    server = QuickServer(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        wait_until(lambda: server.started or not thread.is_alive(), 20, "uvicorn")
        assert server.started
        port = server.servers[0].sockets[0].getsockname()[1]
        yield f"http://127.0.0.1:{port}"
    finally:
        server.should_exit = True
        thread.join(20)
