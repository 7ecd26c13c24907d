"""The page at `/docs` and all that it needs come from this service."""

import re

import httpx
import pytest

from service.settings import Settings
from service.store.database import Database
from service.store.projects import keys
from tests.api.conftest import code, running

_REFERENCE = re.compile(r'(?:src|href|action)="([^"]*)"')
_FOREIGN = re.compile(r"(?:https?:)?//[\w.-]+\.\w+")


@pytest.fixture
def client(shared_client: httpx.Client) -> httpx.Client:
    return shared_client


class TestPage:
    def test_every_file_that_it_names_is_served_here(self, client: httpx.Client) -> None:
        page = client.get("/docs")
        names = _REFERENCE.findall(page.text)
        assert len(names) == 6
        assert _FOREIGN.findall(page.text) == []
        for name in names:
            answer = client.get(f"/{name}")
            assert answer.status_code == 200, name
            assert len(answer.content) > 100, name
        own = client.get("/docs/assets/page.js").text + client.get("/docs/assets/page.css").text
        assert _FOREIGN.findall(own) == []
        assert "validatorUrl: null" in own  # else Swagger UI asks a server on the internet
        sheet = client.get("/docs/assets/swagger-ui.css").text
        loaded = re.findall(r"url\(([^)]*)\)|@import", sheet)
        assert all(url.strip("\"'").startswith("data:") for url in loaded)

    @pytest.mark.parametrize("name", ["/docs", "/docs/assets/swagger-ui-bundle.js"])
    def test_the_browser_may_load_nothing_else(self, client: httpx.Client, name: str) -> None:
        headers = client.get(name).headers
        policy = dict(
            part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";")
        )
        assert policy["default-src"] == policy["frame-ancestors"] == "'none'"
        assert policy["script-src"] == policy["connect-src"] == "'self'"
        assert not any("http" in sources or "*" in sources for sources in policy.values())
        assert headers["x-content-type-options"] == "nosniff"

    @pytest.mark.parametrize("path", ["/", "/redoc"])
    def test_the_root_leads_there(self, client: httpx.Client, path: str) -> None:
        answer = client.get(path, follow_redirects=False)
        assert answer.status_code == 307
        assert client.get(path, follow_redirects=True).url.path == "/docs"

    def test_what_has_not_changed_is_not_sent_again(self, client: httpx.Client) -> None:
        path = "/docs/assets/swagger-ui-bundle.js"
        first = client.get(path)
        assert first.headers["cache-control"] == "no-cache"
        again = client.get(path, headers={"If-None-Match": first.headers["etag"]})
        assert (again.status_code, again.content) == (304, b"")
        assert client.get(path, headers={"If-None-Match": '"other"'}).content == first.content

    @pytest.mark.parametrize("name", ["redoc.standalone.js", "..%2Fdocs.py", "none"])
    def test_nothing_else_is_served(self, client: httpx.Client, name: str) -> None:
        assert code(client.get(f"/docs/assets/{name}")) == (404, "route_not_found")

    def test_the_page_is_open_and_the_description_is_not(
        self, api_settings: Settings, database: Database
    ) -> None:
        with database.write() as session:
            key = keys.create(session, "ci")[1]
        closed = api_settings.model_copy(update={"auth": "required"})
        with running(closed) as url, httpx.Client(base_url=url, verify=False) as client:
            self.check_closed(client, key)

    def check_closed(self, client: httpx.Client, key: str) -> None:
        for path in ("/docs", "/docs/assets/page.js", "/docs/assets/swagger-ui-bundle.js"):
            assert client.get(path).status_code == 200
        assert client.get("/", follow_redirects=False).status_code == 307
        for path in ("/openapi.json", "/docs/oauth2-redirect", "/docs/"):
            assert client.get(path).status_code == 401, path
        bearer = {"Authorization": f"Bearer {key}"}
        assert client.get("/openapi.json", headers=bearer).status_code == 200
