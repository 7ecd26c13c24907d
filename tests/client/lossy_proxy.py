"""A proxy that forwards a request to the real service and loses its answer."""

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from urllib.parse import urlsplit


class Proxy:
    """Loses the first `lose` answers: the request arrives whole, the client's connection ends."""

    def __init__(self, target: str, lose: int, after_bytes: int) -> None:
        parts = urlsplit(target)
        self._target = (str(parts.hostname), int(parts.port or 80))
        self._lose = lose
        self._after_bytes = after_bytes
        self.connections = 0
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{self._listener.getsockname()[1]}"

    def serve(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            self.connections += 1
            loses = self.connections <= self._lose
            threading.Thread(target=self._exchange, args=(client, loses), daemon=True).start()

    def _exchange(self, client: socket.socket, loses: bool) -> None:
        with client, socket.create_connection(self._target) as server:
            request = _whole_request(client)
            server.sendall(request.replace(b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n", 1))
            left = self._after_bytes
            # A client that has read enough closes its connection.
            with suppress(OSError):
                while part := server.recv(65536):
                    client.sendall(part[:left] if loses else part)
                    left -= len(part)
                    if loses and left <= 0:
                        return

    def close(self) -> None:
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()


def _whole_request(client: socket.socket) -> bytes:
    data = b""
    while b"\r\n\r\n" not in data:
        data += client.recv(65536)
    head, _, body = data.partition(b"\r\n\r\n")
    lengths = [
        int(line.split(b":")[1])
        for line in head.split(b"\r\n")
        if line.lower().startswith(b"content-length")
    ]
    while lengths and len(body) < lengths[0]:
        body += client.recv(65536)
    return head.replace(b"Connection: keep-alive\r\n", b"") + b"\r\n\r\n" + body


@contextmanager
def proxy(target: str, lose: int, after_bytes: int = 0) -> Iterator[Proxy]:
    made = Proxy(target, lose, after_bytes)
    thread = threading.Thread(target=made.serve)
    thread.start()
    try:
        yield made
    finally:
        made.close()
        thread.join()
