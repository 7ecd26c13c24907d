"""The client against a server that loses answers, like a broken connection."""

import os
import ssl
from collections.abc import Iterator
from pathlib import Path

import pytest
from finetune_client.http import calls, retries
from pydantic import SecretStr

from service.cli.stack.lock import StackAddress, write_address
from service.cli.terminal.client import ApiError, Client, ClientSettings, UnreachableError
from service.cli.terminal.exit_codes import UsageError
from tests.support.servers.scripted_service import Service, serving, untrusted_certificate


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[Service]:
    monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
    with serving() as server:
        yield server


class TestCertificates:
    @pytest.mark.parametrize("scheme", ["https", "HTTPS"])
    def test_one_with_an_untrusted_certificate_gets_no_key(
        self, service: Service, tmp_path: Path, scheme: str
    ) -> None:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(untrusted_certificate(tmp_path))
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
            assert client.send(calls.create_job({}, "key-1")) == {"id": "j"}
        assert [seen["Idempotency-Key"] for seen in service.headers_seen] == ["key-1"] * 3


class TestErrors:
    def test_an_answer_that_is_not_json_becomes_a_problem(self, service: Service) -> None:
        service.answers = [(500, "<html>proxy</html>")]
        with Client(service.url) as client, pytest.raises(ApiError) as failed:
            client.get("/v1/jobs")
        assert failed.value.problem["detail"] == "<html>proxy</html>"

    @pytest.mark.parametrize("body", ["<html>a shop</html>", "[]", ""])
    def test_another_server_does_not_crash_it(self, service: Service, body: str) -> None:
        service.answers = [(200, body)]
        with Client(service.url) as client, pytest.raises(UnreachableError) as failed:
            client.get("/v1/jobs")
        assert "does FINETUNE_URL name another server?" in str(failed.value)


class TestApiKey:
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
        monkeypatch.setattr(retries, "FIRST_WAIT", 0.01)
        client = Client("http://joe:secret@127.0.0.1:9")
        with client, pytest.raises(UnreachableError) as failed:
            client.get("/v1/jobs")
        assert "no answer from http://127.0.0.1:9 (" in str(failed.value)

    def test_the_variable_then_the_running_stack_then_the_default(
        self, home: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        assert ClientSettings().base_url() == "http://127.0.0.1:8000"
        address = StackAddress(
            pid=os.getpid(), url="http://127.0.0.1:8123", mlflow_url=None, home=home.resolve()
        )
        write_address(home, address)
        assert ClientSettings().base_url() == "http://127.0.0.1:8123"
        monkeypatch.setenv("FINETUNE_URL", "http://elsewhere/")
        assert ClientSettings().base_url() == "http://elsewhere"
