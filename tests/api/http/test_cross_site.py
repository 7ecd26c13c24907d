"""What a page of another site can make a visitor's browser do here. The service is open (`auth` is
off), as it is worst: nothing but the browser stands between the page and the API."""

import json

import httpx
import pytest

from service.api.http.server import options
from service.settings import Settings
from service.store.database import Database
from tests.api.conftest import Server, code, running
from tests.api.factories import SPEC

BODY = json.dumps(SPEC).encode()
EVIL = "http://evil.example"
SCRIPT = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "no-cors", "Sec-Fetch-Dest": "script"}
LINK = {"Sec-Fetch-Site": "cross-site", "Sec-Fetch-Mode": "navigate", "Sec-Fetch-Dest": "document"}


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


class TestHosts:
    @pytest.mark.parametrize(
        "host",
        ["evil.example", "evil.example:8000", "127.0.0.1.evil.example", "localhost.evil", "x@"],
    )
    @pytest.mark.parametrize("path", ["/v1/jobs", "/docs", "/health/live", "/mlflow/"])
    def test_a_name_that_was_made_to_lead_here(
        self, client: httpx.Client, host: str, path: str
    ) -> None:
        """DNS rebinding: to the browser the page and the service are one site."""
        assert code(client.get(path, headers={"Host": host})) == (421, "unknown_host")

    @pytest.mark.parametrize(
        "host",
        [
            *("localhost", "LOCALHOST:8000", "127.0.0.1", "[::1]:8000", "192.168.1.4:8000"),
            *("localhost.", "finetune.localhost"),
        ],
    )
    def test_this_machine_and_addresses(self, client: httpx.Client, host: str) -> None:
        assert client.get("/v1/jobs", headers={"Host": host}).status_code == 200

    def test_the_operator_names_others(self, api_settings: Settings, database: Database) -> None:
        settings = api_settings.model_copy(
            update={"allowed_hosts": ["Gpu.local"], "public_url": "https://ft.example.org/"}
        )
        with running(settings) as url:
            for host, status in {"gpu.local": 200, "ft.example.org": 200, "other": 421}.items():
                assert httpx.get(f"{url}/v1/jobs", headers={"Host": host}).status_code == status


class TestForgedRequests:
    @pytest.mark.parametrize(
        "headers",
        [
            {"Origin": EVIL},
            {"Origin": "null"},
            {"Origin": "http://127.0.0.1:1"},
            {"Origin": "http://["},
            {"Sec-Fetch-Site": "cross-site"},
            {"Sec-Fetch-Site": "same-site"},
            LINK,
        ],
    )
    @pytest.mark.parametrize("content_type", ["text/plain", "application/json"])
    def test_another_site_submits_nothing(
        self, client: httpx.Client, headers: dict[str, str], content_type: str
    ) -> None:
        answer = client.post(
            "/v1/jobs", content=BODY, headers={**headers, "Content-Type": content_type}
        )
        assert code(answer) == (403, "cross_site")
        assert client.get("/v1/jobs").json()["data"] == []

    def test_our_own_pages_do(self, server: Server) -> None:
        own = {"Origin": server.url, "Sec-Fetch-Site": "same-origin"}
        headers = {**own, "Content-Type": "application/json"}
        assert server.client.post("/v1/jobs", content=BODY, headers=headers).status_code == 201

    def test_behind_a_proxy_that_changes_the_host(
        self, api_settings: Settings, database: Database
    ) -> None:
        settings = api_settings.model_copy(update={"public_url": "https://ft.example.org"})
        headers = {"Origin": "https://ft.example.org", "Content-Type": "application/json"}
        with running(settings) as url:
            assert httpx.post(f"{url}/v1/jobs", content=BODY, headers=headers).status_code == 201


class TestEmbedding:
    @pytest.mark.parametrize("kind", ["script", "image", "iframe", "empty"])
    def test_another_site_includes_no_answer(self, client: httpx.Client, kind: str) -> None:
        for path in ("/v1/jobs/job-1/logs", "/v1/jobs", "/openapi.json", "/mlflow/"):
            answer = client.get(path, headers={**SCRIPT, "Sec-Fetch-Dest": kind})
            assert code(answer) == (403, "cross_site")

    def test_a_frame_that_navigates(self, client: httpx.Client) -> None:
        assert client.get("/docs", headers={**LINK, "Sec-Fetch-Dest": "iframe"}).status_code == 403

    def test_a_link_leads_here(self, client: httpx.Client) -> None:
        assert client.get("/docs", headers=LINK).status_code == 200

    def test_a_browser_without_these_headers_gets_a_policy(self, client: httpx.Client) -> None:
        answer = client.get("/v1/jobs")
        assert answer.headers["cross-origin-resource-policy"] == "same-origin"
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert "frame-ancestors 'none'" in answer.headers["content-security-policy"]
        assert "access-control-allow-origin" not in answer.headers


class TestCors:
    def test_off_by_default(self, client: httpx.Client) -> None:
        asked = {"Origin": EVIL, "Access-Control-Request-Method": "POST"}
        answer = client.options("/v1/jobs", headers=asked)
        assert code(answer) == (403, "cross_site")

    def test_for_the_sites_that_are_named(self, api_settings: Settings, database: Database) -> None:
        site = "https://app.example.org"
        settings = api_settings.model_copy(update={"cors_origins": [site], "auth": "required"})
        with running(settings) as url:
            asked = {
                "Origin": site,
                "Sec-Fetch-Site": "cross-site",
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": "authorization,content-type",
            }
            answer = httpx.options(f"{url}/v1/jobs", headers=asked)
            assert answer.status_code == 200
            assert answer.headers["access-control-allow-origin"] == site
            assert "access-control-allow-credentials" not in answer.headers
            # It still needs a key, and may read that it does.
            refused = httpx.get(f"{url}/v1/jobs", headers={"Origin": site})
            assert code(refused) == (401, "unauthorized")
            assert refused.headers["access-control-allow-origin"] == site
            other = httpx.options(f"{url}/v1/jobs", headers={**asked, "Origin": EVIL})
            assert code(other) == (403, "cross_site")


class TestProxies:
    def test_no_client_chooses_the_address_that_is_logged(self, api_settings: Settings) -> None:
        assert options(api_settings)["proxy_headers"] is False
        trusted = api_settings.model_copy(update={"trusted_proxies": ["10.0.0.0/8"]})
        given = options(trusted)
        assert (given["proxy_headers"], given["forwarded_allow_ips"]) == (True, ["10.0.0.0/8"])
