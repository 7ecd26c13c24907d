"""MLflow behind the service: with a key or a session, and only what it lists."""

import base64
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path

import httpx
import pytest
from mlflow import MlflowClient
from sqlalchemy import select, update

from service.contract.roles import DEFAULT_PROJECT, Role
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.projects import audit, keys, projects
from service.store.scope import EVERYTHING
from service.store.tables.projects import SessionRow
from service.system.login_links import make_link
from tests.api.conftest import Server, code, running
from tests.support.servers import mlflow_server

AJAX = "/mlflow/ajax-api/2.0/mlflow"
HTML = {"Accept": "text/html,application/xhtml+xml"}


@dataclass(frozen=True)
class Run:
    experiment_id: str
    run_id: str


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory, processes: None) -> Run:
    """A run with a metric and an artifact that a browser would run."""
    uri = mlflow_server.shared_guarded_uri()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("MLFLOW_TRACKING_TOKEN", mlflow_server.TOKEN)
        client = MlflowClient(uri)
        experiment = client.create_experiment("behind the service")
        made = client.create_run(experiment).info.run_id
        client.log_metric(made, "loss", 0.5)
        page = tmp_path_factory.mktemp("artifacts") / "page.html"
        page.write_text("<script>steal()</script>")
        client.log_artifact(made, str(page))
    return Run(experiment, made)


@pytest.fixture
def api_settings(api_settings: Settings, tmp_path: Path, processes: None) -> Settings:
    token = tmp_path / "token"
    token.write_text(mlflow_server.TOKEN)
    (tmp_path / "home").mkdir()
    changes = {
        "auth": "required",
        "mlflow_uri": mlflow_server.shared_guarded_uri(),
        "mlflow_token_file": token,
    }
    return api_settings.model_copy(update=changes)


@pytest.fixture
def key(database: Database) -> str:
    with database.write() as session:
        return keys.create(session, "me")[1]


@pytest.fixture
def bearer(server: Server, key: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {key}"}
    with httpx.Client(base_url=server.url, headers=headers, timeout=30, verify=False) as client:
        yield client


@pytest.fixture
def browser(server: Server, key: str) -> Iterator[httpx.Client]:
    """Signed in."""
    with httpx.Client(base_url=server.url, timeout=30, verify=False) as client:
        assert client.post("/login", json={"key": key}).status_code == 204
        yield client


class TestEntrance:
    @pytest.mark.parametrize(
        "path", ["/mlflow", "/mlflow/", "/mlflow/version", f"{AJAX}/experiments/search"]
    )
    def test_a_key_is_needed(self, client: httpx.Client, path: str) -> None:
        for headers in ({}, {"Authorization": "Bearer ft-x"}, {"Cookie": "finetune_session=x"}):
            assert client.get(path, headers=headers).status_code == 401

    def test_a_person_is_sent_to_the_login(self, client: httpx.Client) -> None:
        answer = client.get("/mlflow/", headers=HTML)
        assert (answer.status_code, answer.headers["location"]) == (303, "../login")
        assert client.get("/mlflow", headers=HTML).headers["location"] == "login"
        page = client.get("/login")
        assert 'src="login/page.js"' in page.text
        assert "script-src 'self';" in page.headers["content-security-policy"]

    def test_clients_of_mlflow_send_the_key_in_two_ways(
        self, server: Server, bearer: httpx.Client, key: str, run: Run
    ) -> None:
        path = f"/mlflow/api/2.0/mlflow/runs/get?run_id={run.run_id}"
        assert bearer.get(path).json()["run"]["data"]["metrics"][0]["value"] == 0.5
        basic = base64.b64encode(f"anybody:{key}".encode()).decode()
        answer = httpx.get(f"{server.url}{path}", headers={"Authorization": f"Basic {basic}"})
        assert answer.status_code == 200

    def test_neither_the_key_nor_the_token_is_passed_on(
        self, bearer: httpx.Client, key: str, run: Run
    ) -> None:
        for path in ("/mlflow/", f"/mlflow/get-artifact?run_id={run.run_id}&path=page.html"):
            answer = bearer.get(path)
            assert answer.status_code == 200
            assert key not in f"{answer.headers}{answer.text}"
            assert mlflow_server.TOKEN not in f"{answer.headers}{answer.text}"


def cookie_of(browser: httpx.Client) -> dict[str, str]:
    (cookie,) = browser.cookies.jar
    return {"Cookie": f"{cookie.name}={cookie.value}"}


class TestSession:
    def test_opens_mlflow_and_nothing_else(self, browser: httpx.Client, run: Run) -> None:
        assert browser.get("/mlflow/").status_code == 200
        assert browser.get(f"{AJAX}/runs/get?run_id={run.run_id}").status_code == 200
        for path in ("/v1/jobs", "/metrics", "/openapi.json"):
            assert browser.get(path, headers=cookie_of(browser)).status_code == 401

    def test_scripts_and_other_sites_cannot_use_it(self, server: Server, key: str) -> None:
        answer = httpx.post(f"{server.url}/login", json={"key": key})
        cookie = answer.headers["set-cookie"]
        assert all(word in cookie for word in ("HttpOnly", "SameSite=strict", "Path=/mlflow"))
        assert "Max-Age=43200" in cookie
        assert key not in cookie

    @pytest.mark.parametrize("is_trusted", [True, False])
    def test_behind_a_proxy_that_ends_tls(
        self, api_settings: Settings, database: Database, key: str, *, is_trusted: bool
    ) -> None:
        proxies = ["127.0.0.1"] if is_trusted else []
        settings = api_settings.model_copy(update={"trusted_proxies": proxies})
        with running(settings) as url:
            headers = {"X-Forwarded-Proto": "https"}
            answer = httpx.post(f"{url}/login", json={"key": key}, headers=headers)
        assert ("Secure" in answer.headers["set-cookie"]) is is_trusted

    def test_ends_with_its_key(self, server: Server, browser: httpx.Client) -> None:
        with server.database.write() as session:
            (row,) = keys.list_all(session)
            keys.revoke(session, row.id)
        assert browser.get("/mlflow/").status_code == 401

    def test_a_copied_cookie_ends_with_the_sign_out_in_every_process(
        self, server: Server, browser: httpx.Client
    ) -> None:
        copied = cookie_of(browser)
        with running(server.settings) as other:
            assert httpx.get(f"{other}/mlflow/version", headers=copied).status_code == 200
            assert browser.post("/mlflow/logout", json={}).status_code == 204
            assert browser.get("/mlflow/version").status_code == 401
            for url in (server.url, other):
                assert httpx.get(f"{url}/mlflow/version", headers=copied).status_code == 401

    def test_signing_out_ends_no_other_session(
        self, server: Server, browser: httpx.Client, key: str
    ) -> None:
        with httpx.Client(base_url=server.url, verify=False) as second:
            second.post("/login", json={"key": key})
            second.post("/mlflow/logout", json={})
            second.post("/mlflow/logout", json={}, headers={"Cookie": "finetune_session=wrong"})
        assert browser.get("/mlflow/version").status_code == 200

    def test_is_in_the_audit_log(self, server: Server, browser: httpx.Client) -> None:
        browser.post("/mlflow/logout", json={})
        browser.post("/mlflow/logout", json={})
        with server.database.read() as session:
            rows, _ = audit.page(session, EVERYTHING, audit.Wanted(), after=None, limit=9)
            (key,) = keys.list_all(session)
        found = [(row.action, row.key_id, row.key_name, row.client) for row in rows]
        assert found == [(name, key.id, "me", "127.0.0.1") for name in ("sign_out", "sign_in")]
        assert rows[0].target == rows[1].target
        assert (rows[0].target or "").startswith("session-")

    def test_its_token_is_not_stored_and_no_key(
        self, server: Server, browser: httpx.Client
    ) -> None:
        token = cookie_of(browser)["Cookie"].partition("=")[2]
        with server.database.read() as session:
            (row,) = session.scalars(select(SessionRow))
            assert token not in str(vars(row))
        headers = {"Authorization": f"Bearer {token}"}
        for path in ("/v1/jobs", "/mlflow/version"):
            assert httpx.get(f"{server.url}{path}", headers=headers).status_code == 401

    def test_expired_ones_are_removed(
        self, server: Server, browser: httpx.Client, key: str
    ) -> None:
        with server.database.write() as session:
            session.execute(update(SessionRow).values(expires_at=db_now()))
        httpx.post(f"{server.url}/login", json={"key": key})
        with server.database.read() as session:
            assert len(session.scalars(select(SessionRow)).all()) == 1

    def test_an_open_service_needs_none(self, api_settings: Settings) -> None:
        with running(api_settings.model_copy(update={"auth": "off"})) as url:
            answer = httpx.post(f"{url}/login", json={"key": "anything"})
            assert (answer.status_code, answer.headers.get("set-cookie")) == (204, None)

    def test_survives_a_restart_of_the_api(self, server: Server, browser: httpx.Client) -> None:
        with running(server.settings) as url:
            answer = httpx.get(f"{url}/mlflow/version", headers=cookie_of(browser))
            assert answer.status_code == 200

    def test_a_wrong_key_gives_none(self, client: httpx.Client) -> None:
        for body in ({"key": "ft-wrong"}, {"key": ""}, {"key": 1}, {}, {"link": "x"}):
            answer = client.post("/login", json=body)
            assert (answer.status_code, answer.headers.get("set-cookie")) == (401, None)

    @pytest.mark.parametrize("content_type", ["text/plain", "application/x-www-form-urlencoded"])
    def test_a_form_of_another_site_cannot_sign_in(
        self, client: httpx.Client, key: str, content_type: str
    ) -> None:
        body = f'{{"key": "{key}"}}'
        answer = client.post("/login", content=body, headers={"Content-Type": content_type})
        assert answer.status_code == 400

    def test_a_link_works_once(self, server: Server, key: str) -> None:
        token = make_link(server.settings.home, key)
        first = server.client.post("/login", json={"link": token})
        second = server.client.post("/login", json={"link": token})
        assert (first.status_code, second.status_code) == (204, 401)
        assert list((server.settings.home / "login-links").iterdir()) == []


class TestLinks:
    @pytest.mark.parametrize(
        ("given", "url"),
        [
            ({"mlflow_uri": "http://m:5000/"}, "http://m:5000"),
            ({"mlflow_uri": "http://m:5000", "mlflow_public_uri": "https://m/"}, "https://m"),
            ({"mlflow_uri": "http://m", "mlflow_token_file": "/t"}, "https://ft/mlflow"),
            ({"mlflow_public_uri": "https://m", "mlflow_token_file": "/t"}, "https://m"),
            ({}, None),
        ],
    )
    def test_where_a_jobs_page_leads(self, given: dict[str, str], url: str | None) -> None:
        assert Settings(public_url="https://ft/", **given).mlflow_users_url == url  # type: ignore[arg-type]


class TestRoles:
    """MLflow has no projects: whoever opens it sees all that is in it."""

    def given(self, server: Server, grant: keys.Grant) -> httpx.Client:
        with server.database.write() as session:
            key = keys.create(session, "theirs", grant)[1]
        headers = {"Authorization": f"Bearer {key}"}
        return httpx.Client(base_url=server.url, headers=headers, timeout=30, verify=False)

    @pytest.mark.parametrize(
        "grant",
        [
            keys.Grant(DEFAULT_PROJECT, Role.VIEWER),
            keys.Grant(DEFAULT_PROJECT, Role.MEMBER, scopes=["jobs:read"]),
        ],
    )
    def test_who_may_only_read_cannot_tag(
        self, server: Server, run: Run, grant: keys.Grant
    ) -> None:
        with self.given(server, grant) as client:
            assert client.get(f"{AJAX}/runs/get?run_id={run.run_id}").status_code == 200
            body = {"run_id": run.run_id, "key": "team", "value": "search"}
            assert client.post(f"{AJAX}/runs/set-tag", json=body).status_code == 403
            # Searching changes nothing.
            wanted = {"experiment_ids": [run.experiment_id]}
            assert client.post(f"{AJAX}/runs/search", json=wanted).status_code == 200

    def test_a_key_for_files_alone_opens_nothing(self, server: Server) -> None:
        grant = keys.Grant(DEFAULT_PROJECT, Role.MEMBER, scopes=["files:read"])
        with self.given(server, grant) as client:
            assert client.get("/mlflow/version").status_code == 403

    def test_once_there_are_several_projects_only_operators_see_the_runs(
        self, server: Server, bearer: httpx.Client
    ) -> None:
        with self.given(server, keys.Grant(DEFAULT_PROJECT, Role.ADMIN)) as client:
            assert client.get("/mlflow/version").status_code == 200
            with server.database.write() as session:
                other = projects.create(session, "other", {}).id
            assert client.get("/mlflow/version").status_code == 403
        with self.given(server, keys.Grant(other, Role.ADMIN)) as client:
            assert code(client.get("/mlflow/version")) == (403, "forbidden")
        assert bearer.get("/mlflow/version").status_code == 200

    def test_an_expired_key_opens_nothing(self, server: Server) -> None:
        past = datetime.now(UTC) - timedelta(seconds=1)
        with self.given(server, keys.Grant(expires_at=past)) as client:
            assert client.get("/mlflow/version").status_code == 401


class TestWhatIsServed:
    def test_experiments_cannot_be_made_at_all(self, bearer: httpx.Client) -> None:
        for body in ({"name": "mine"}, {"name": "mine", "artifact_location": "file:///etc"}):
            for prefix in (AJAX, "/mlflow/api/2.0/mlflow"):
                refused = bearer.post(f"{prefix}/experiments/create", json=body)
                assert (refused.status_code, refused.json()["code"]) == (403, "forbidden")

    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", f"{AJAX}/runs/create"),
            ("POST", f"{AJAX}/runs/delete"),
            ("POST", f"{AJAX}/runs/log-batch"),
            ("POST", f"{AJAX}/model-versions/create"),
            ("POST", f"{AJAX}/webhooks"),
            ("POST", f"{AJAX}/gateway-proxy"),
            ("POST", f"{AJAX}/upload-artifact?run_uuid=1&path=x"),
            ("PUT", "/mlflow/api/2.0/mlflow-artifacts/artifacts/0/x"),
            ("POST", "/mlflow/api/2.0/mlflow-artifacts/mpu/create/0/x"),
            ("POST", "/mlflow/api/2.0/mlflow-artifacts/mpu/complete/0/x"),
            ("POST", "/mlflow/ajax-api/3.0/mlflow/assistant/message"),
            ("GET", "/mlflow/get-artifact?run_id=1&path=..%2F..%2Ftoken"),
            ("GET", "/mlflow/%2e%2e/v1/jobs"),
            ("GET", "/mlflow//api/2.0/mlflow/webhooks"),
        ],
    )
    def test_what_is_not_listed_is_refused(
        self, bearer: httpx.Client, method: str, path: str
    ) -> None:
        assert bearer.request(method, path).status_code in (403, 404)

    def test_the_pages_learn_that_other_parts_of_mlflow_are_absent(
        self, bearer: httpx.Client
    ) -> None:
        """Their console shows no error, and MLflow itself is not asked."""
        path = "/mlflow/ajax-api/2.0/mlflow/gateway-proxy?gateway_path=http://169.254.169.254/"
        assert bearer.get(path).json() == {"endpoints": []}
        for name in ("config", "providers"):
            answer = bearer.get(f"/mlflow/ajax-api/3.0/mlflow/assistant/{name}")
            assert not any(answer.json().values())

    def test_runs_can_be_tagged(self, bearer: httpx.Client, run: Run) -> None:
        body = {"run_id": run.run_id, "key": "team", "value": "search"}
        assert bearer.post(f"{AJAX}/runs/set-tag", json=body).status_code == 200

    def test_an_artifact_runs_nothing(self, bearer: httpx.Client, run: Run) -> None:
        answer = bearer.get(f"/mlflow/get-artifact?run_id={run.run_id}&path=page.html")
        assert answer.text == "<script>steal()</script>"
        assert answer.headers["content-security-policy"].startswith("sandbox;")
        assert answer.headers["content-disposition"].startswith("attachment")
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"

    def test_no_other_site_may_frame_the_pages(self, bearer: httpx.Client) -> None:
        answer = bearer.get("/mlflow/")
        assert "frame-ancestors 'self'" in answer.headers["content-security-policy"]
        assert answer.headers["x-frame-options"] == "SAMEORIGIN"

    def test_an_unreachable_server_is_a_problem(
        self, api_settings: Settings, database: Database, key: str
    ) -> None:
        unreachable = api_settings.model_copy(update={"mlflow_uri": "http://127.0.0.1:1"})
        with running(unreachable) as url:
            headers = {"Authorization": f"Bearer {key}"}
            answer = httpx.get(f"{url}/mlflow/version", headers=headers)
        assert (answer.status_code, answer.json()["code"]) == (503, "mlflow_unavailable")

    def test_a_server_of_the_operators_own_is_not_served(
        self, api_settings: Settings, database: Database, key: str
    ) -> None:
        own = api_settings.model_copy(update={"mlflow_token_file": None})
        with running(own) as url:
            headers = {"Authorization": f"Bearer {key}"}
            assert httpx.get(f"{url}/mlflow/version", headers=headers).status_code == 404
