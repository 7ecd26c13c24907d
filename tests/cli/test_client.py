"""The client against a server that loses answers, like a broken connection."""

import datetime
import ipaddress
import os
import ssl
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from pydantic import SecretStr

from service.cli import client as client_module
from service.cli.client import ApiError, Client, ClientSettings, UnreachableError
from service.cli.exit_codes import UsageError
from service.cli.stack.lock import StackAddress, write_address


class Service(ThreadingHTTPServer):
    """Sends `answers` one after the other: a status and a body, or None for a lost answer."""

    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), _Handler)
        self.answers: list[tuple[int, str] | None] = []
        self.headers_seen: list[dict[str, str]] = []

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: Service

    def _answer(self) -> None:
        self.rfile.read(int(self.headers.get("Content-Length", 0)))
        self.server.headers_seen.append(dict(self.headers))
        answer = self.server.answers.pop(0)
        if answer is None:
            self.close_connection = True
            return
        status, body = answer
        self.send_response(status)
        self.send_header("Content-Length", str(len(body.encode())))
        if 300 <= status < 400:
            self.send_header("Location", "https://elsewhere/")
        self.end_headers()
        self.wfile.write(body.encode())

    do_GET = do_POST = _answer

    def log_message(self, *_: object) -> None:
        return


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(client_module, "RETRY_WAITS", (0.01, 0.01, 0.01))
    server = Service()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def _certificate_of_nobody(folder: Path) -> Path:
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


class TestCertificates:
    @pytest.mark.parametrize("scheme", ["https", "HTTPS"])
    def test_one_that_nobody_vouches_for_gets_no_key(
        self, service: Service, tmp_path: Path, scheme: str
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(_certificate_of_nobody(tmp_path))
        service.socket = context.wrap_socket(service.socket, server_side=True)
        url = f"{scheme}://127.0.0.1:{service.server_address[1]}"
        with (
            Client(url, SecretStr("ft-key")) as client,
            pytest.raises(UnreachableError, match="certificate verify failed"),
        ):
            client.get("/v1/jobs")
        assert service.headers_seen == []


class TestSubmit:
    def test_a_lost_answer_is_asked_for_again_with_the_same_key(self, service: Service) -> None:
        service.answers = [None, (409, '{"code": "idempotency_in_flight"}'), (201, '{"id": "j"}')]
        with Client(service.url) as client:
            assert client.submit({}, "key-1") == {"id": "j"}
        assert [seen["Idempotency-Key"] for seen in service.headers_seen] == ["key-1"] * 3

    def test_a_refusal_is_not_repeated(self, service: Service) -> None:
        service.answers = [(422, '{"code": "invalid_spec", "detail": "no"}')]
        with Client(service.url) as client, pytest.raises(ApiError) as refused:
            client.submit({}, "key-1")
        assert (refused.value.status, refused.value.code) == (422, "invalid_spec")

    def test_gives_up_after_the_last_wait(self, service: Service) -> None:
        service.answers = [None] * 4
        with Client(service.url) as client, pytest.raises(UnreachableError):
            client.submit({}, "key-1")
        assert service.answers == []


class TestErrors:
    def test_an_answer_that_is_not_json_becomes_a_problem(self, service: Service) -> None:
        service.answers = [(500, "<html>proxy</html>")]
        with Client(service.url) as client, pytest.raises(ApiError) as failed:
            client.get("/v1/jobs")
        assert failed.value.problem["detail"] == "<html>proxy</html>"

    @pytest.mark.parametrize("body", ["<html>a shop</html>", "[]", ""])
    def test_another_server_is_no_crash(self, service: Service, body: str) -> None:
        service.answers = [(200, body)]
        with Client(service.url) as client, pytest.raises(UnreachableError) as failed:
            client.get("/v1/jobs")
        assert "does FINETUNE_URL name another server?" in str(failed.value)

    def test_a_redirect_says_where_to(self, service: Service) -> None:
        service.answers = [(308, "")]
        with Client(service.url) as client, pytest.raises(UnreachableError) as failed:
            client.get("/v1/jobs")
        assert "redirects to https://elsewhere/: set FINETUNE_URL" in str(failed.value)

    @pytest.mark.parametrize(
        ("spec", "words"),
        [
            ({"training": {"learning_rate": float("nan")}}, "NaN and the infinities"),
            ({"name": "\udcff"}, "'\\udcff', which is not Unicode text"),
        ],
    )
    def test_what_json_cannot_hold_is_refused(self, spec: dict[str, Any], words: str) -> None:
        with Client("http://127.0.0.1:9") as client, pytest.raises(UsageError) as refused:
            client.validate(spec)
        assert words in str(refused.value)


class TestDownload:
    def test_a_refused_one_leaves_nothing(self, service: Service, tmp_path: Path) -> None:
        service.answers = [(404, '{"code": "artifact_not_found"}')]
        with Client(service.url) as client, pytest.raises(ApiError):
            client.download("/a", tmp_path / "a")
        assert list(tmp_path.iterdir()) == []


class TestApiKey:
    def test_is_sent_as_bearer(self, service: Service) -> None:
        service.answers = [(200, "{}")]
        with Client(service.url, SecretStr("ft-secret")) as client:
            client.get("/v1/jobs")
        assert service.headers_seen[0]["Authorization"] == "Bearer ft-secret"

    def test_the_end_of_its_line_does_not_belong_to_it(self, service: Service) -> None:
        service.answers = [(200, "{}")]
        with Client(service.url, SecretStr("ft-secret\r\n")) as client:
            client.get("/v1/jobs")
        assert service.headers_seen[0]["Authorization"] == "Bearer ft-secret"

    @pytest.mark.parametrize("key", ["ft-\nsecret", "ft-sécret"])
    def test_one_that_cannot_be_sent_is_not_shown(self, key: str) -> None:
        with pytest.raises(UsageError) as refused:
            Client("http://127.0.0.1:9", SecretStr(key))
        assert "cret" not in str(refused.value)


class TestBaseUrl:
    @pytest.mark.parametrize(
        "url", ["127.0.0.1:8000", "localhost", "ftp://host", "http://", "http://h:99999"]
    )
    def test_must_be_that_of_a_server(self, url: str) -> None:
        with pytest.raises(UsageError, match="FINETUNE_URL must be http://HOST:PORT"):
            Client(url)

    def test_a_password_in_it_is_not_shown(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(client_module, "RETRY_WAITS", ())
        client = Client("http://joe:secret@127.0.0.1:9")
        with client, pytest.raises(UnreachableError) as failed:
            client.get("/v1/jobs")
        assert "no answer from http://127.0.0.1:9 (" in str(failed.value)

    def test_the_variable_then_the_running_stack_then_the_default(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert ClientSettings().base_url() == "http://127.0.0.1:8000"
        address = StackAddress(pid=os.getpid(), url="http://127.0.0.1:8123", mlflow_url=None)
        write_address(home, address)
        assert ClientSettings().base_url() == "http://127.0.0.1:8123"
        monkeypatch.setenv("FINETUNE_URL", "http://elsewhere/")
        assert ClientSettings().base_url() == "http://elsewhere"
