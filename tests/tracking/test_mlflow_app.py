"""The tracking server by itself: without its token nothing, and with it no way to a file."""

import json
from collections.abc import Iterator
from pathlib import Path

import httpx
import psutil
import pytest

from service.system import own_packages
from tests.support.servers import mlflow_server

_API = "/api/2.0/mlflow"


@pytest.fixture
def mlflow(mlflow_uri: str) -> Iterator[httpx.Client]:
    headers = {"Authorization": f"Bearer {mlflow_server.TOKEN}"}
    with httpx.Client(base_url=mlflow_uri, headers=headers, timeout=30, verify=False) as client:
        yield client


class TestToken:
    @pytest.mark.parametrize(
        "authorization", [None, "", "Bearer", "Bearer none", f"Basic {mlflow_server.TOKEN}", "é"]
    )
    @pytest.mark.parametrize("path", ["/", "/version", f"{_API}/experiments/get?experiment_id=0"])
    def test_without_it_nothing_is_answered(
        self, mlflow_uri: str, path: str, authorization: str | None
    ) -> None:
        headers = [] if authorization is None else [(b"authorization", authorization.encode())]
        assert httpx.get(f"{mlflow_uri}{path}", headers=headers).status_code == 401

    def test_health_alone_is_open(self, mlflow_uri: str) -> None:
        assert httpx.get(f"{mlflow_uri}/health").text == "OK"


class TestStart:
    def test_uvicorn_does_not_look_into_the_current_folder(self, mlflow_uri: str) -> None:
        """Its own default of `--app-dir` puts that first on its path."""
        port = mlflow_uri.rpartition(":")[2]
        (words,) = (
            each.info["cmdline"]
            for each in psutil.process_iter(["cmdline"])
            if {"worker.tracking.mlflow_app:app", port} <= {*(each.info["cmdline"] or ())}
        )
        assert words[words.index("--app-dir") + 1] == str(own_packages.FOLDER)


class TestFiles:
    """What served the broker's password to any local user."""

    @pytest.mark.parametrize(
        "body",
        [
            {"name": "x", "artifact_location": "file:///etc"},
            {"name": "x", "artifactLocation": "file:///etc"},
            {"name": "x", "artifact_location": "http://127.0.0.1:1/"},
            # MLflow also reads JSON within a JSON string.
            json.dumps({"name": "x", "artifact_location": "file:///etc"}),
        ],
    )
    def test_an_experiment_has_its_artifacts_where_the_server_says(
        self, mlflow: httpx.Client, body: object
    ) -> None:
        for prefix in (_API, "/ajax-api/2.0/mlflow"):
            refused = mlflow.post(f"{prefix}/experiments/create", json=body)
            assert refused.status_code == 403, refused.text

    def test_a_field_that_is_given_twice(self, mlflow: httpx.Client) -> None:
        body = b'{"artifact_location": "file:///etc", "name": "x", "name": "y"}'
        assert mlflow.post(f"{_API}/experiments/create", content=body).status_code == 403

    @pytest.mark.parametrize(
        "source",
        [
            *("file:///etc", "/etc", "http://127.0.0.1/x", "s3://bucket/x"),
            *("mlflow-artifacts:/../../etc", "mlflow-artifacts://host/x", "models:/a?x=1"),
            *("mlflow-artifacts:/%2e%2e/x", 3),
        ],
    )
    def test_a_version_comes_from_the_servers_artifacts(
        self, mlflow: httpx.Client, source: object
    ) -> None:
        body = {"name": "x", "source": source}
        assert mlflow.post(f"{_API}/model-versions/create", json=body).status_code == 403

    @pytest.mark.parametrize(
        "path",
        [
            "/get-artifact?run_id=1&path=../../../token",
            "/get-artifact?run_id=1&path=/etc/passwd",
            "/get-artifact?run_id=1&path=%252e%252e/x",
            "/get-artifact?run_id=1&path=a\\..\\b",
            "/api/2.0/mlflow-artifacts/artifacts/1/..%2f..%2f..%2ftoken",
            "/api/2.0/mlflow-artifacts/artifacts/%252e%252e/token",
            "/api/2.0/mlflow-artifacts/artifacts/file:%2f%2f/etc/passwd",
            f"{_API}/artifacts/list?run_id=1&path=../..",
        ],
    )
    def test_no_path_leaves_the_artifacts(self, mlflow: httpx.Client, path: str) -> None:
        assert mlflow.get(path).status_code == 403

    def test_the_token_file_is_not_served(self, mlflow: httpx.Client, tmp_path: Path) -> None:
        """As the attack went: an experiment in the folder of a secret, a run of it, its file."""
        (tmp_path / "secret").write_text("broker-password")
        body = {"name": f"attack-{tmp_path.name}", "artifact_location": str(tmp_path)}
        assert mlflow.post(f"{_API}/experiments/create", json=body).status_code == 403
        run = {"experiment_id": "0", "artifact_uri": str(tmp_path)}
        assert mlflow.post(f"{_API}/runs/create", json=run).status_code == 403


class TestRoutes:
    @pytest.mark.parametrize(
        ("method", "path"),
        [
            ("POST", "/api/2.0/mlflow/webhooks"),
            ("POST", "/ajax-api/2.0/mlflow/gateway-proxy"),
            ("GET", "/ajax-api/2.0/mlflow/gateway-proxy?gateway_path=x"),
            ("POST", "/ajax-api/3.0/mlflow/gateway/secrets/create"),
            ("POST", "/gateway/x/mlflow/invocations"),
            ("POST", "/ajax-api/3.0/mlflow/assistant/message"),
            ("POST", "/ajax-api/3.0/mlflow/scorer/invoke"),
            ("POST", "/ajax-api/2.0/mlflow/upload-artifact?run_uuid=1&path=x"),
            ("POST", "/api/2.0/mlflow/artifacts/presigned-upload-url"),
            ("GET", "/api/2.0/mlflow-artifacts/presigned/x"),
            ("POST", "/ajax-api/2.0/mlflow/runs/create-promptlab-run"),
            ("POST", "/v1/traces"),
            ("DELETE", "/api/2.0/mlflow-artifacts/artifacts/0/x"),
            ("POST", "/api/2.0/mlflow/experiments/delete"),
            ("TRACE", "/"),
        ],
    )
    def test_what_the_service_does_not_need_is_closed(
        self, mlflow: httpx.Client, method: str, path: str
    ) -> None:
        assert mlflow.request(method, path).status_code == 403
