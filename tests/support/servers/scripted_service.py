"""A server whose answers a test scripts, or that loses them like a broken connection."""

import datetime
import ipaddress
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from json import loads
from pathlib import Path
from typing import Any

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

Answer = tuple[int, str] | tuple[int, str, dict[str, str]]


class Service(ThreadingHTTPServer):
    """Sends `answers` one after the other: a status, a body and perhaps headers, or None for a lost
    answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[Answer | None] = []
        self.headers_seen: list[dict[str, str]] = []
        self.paths_seen: list[str] = []
        self.bodies_seen: list[Any] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def _answer(self) -> None:
        given = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.headers_seen.append(dict(self.headers))
        self.server.paths_seen.append(self.path)
        self.server.bodies_seen += [loads(given)] if given else []
        answer = self.server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, body, headers = answer if len(answer) == 3 else (*answer, {})
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        if 300 <= status < 400:
            self.send_header("Location", "https://elsewhere/")
        for name, value in headers.items():
            self.send_header(name, value)
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_POST = do_DELETE = _answer

    def log_message(self, *_: object) -> None:
        return


@contextmanager
def serving() -> Iterator[Service]:
    server = Service()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def untrusted_certificate(folder: Path) -> Path:
    """A certificate for 127.0.0.1 and its key, signed by itself."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "127.0.0.1")])
    now = datetime.datetime.now(datetime.UTC)
    address = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
    certificate = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(now)
        .not_valid_after(now + datetime.timedelta(hours=1))
        .add_extension(address, critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / "certificate.pem"
    file.write_bytes(
        certificate.public_bytes(serialization.Encoding.PEM)
        + key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return file
