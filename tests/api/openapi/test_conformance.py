"""schemathesis over the OpenAPI document: no 5xx, nothing that the document does not declare."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conftest import Server
from tests.api.factories import add_job
from tests.support.store.databases import on_postgres

pytestmark = [pytest.mark.usefixtures("processes"), pytest.mark.long]

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)
# Without a worker a question gets no answer: 503 is what the document declares for that.
CONFIGURATION = """
[[operations]]
include-path-regex = "completions$"
checks.not_a_server_error.expected-statuses = ["2xx", "4xx", 503]
"""


class TestConformance:
    def test_positive_and_negative_data(self, server: Server, tmp_path: Path) -> None:
        run(server, tmp_path, "--phases", "examples", "--max-examples", "1")

    @on_postgres
    @pytest.mark.heavy
    @pytest.mark.timeout(900)
    def test_every_case(self, server: Server, tmp_path: Path) -> None:
        """Of each parameter and field: each kind of valid and of invalid value."""
        phases = ("--phases", "examples,coverage,fuzzing", "--max-examples", "15")
        # Its body is that of POST /v1/jobs: the coverage phase would make thousands of cases again.
        run(server, tmp_path, *phases, "--exclude-path", "/v1/jobs/validate")


def run(server: Server, folder: Path, *options: str) -> None:
    add_job(server.database)
    configuration = folder / "schemathesis.toml"
    configuration.write_text(CONFIGURATION)
    command = [
        *(sys.executable, "-m", "schemathesis.cli", "--config-file", str(configuration)),
        *("run", f"{server.url}/openapi.json"),
        *("--checks", CHECKS, "--mode", "all", *options),
        *("--seed", "1", "--generation-database", "none"),
        # A stream of a job that waits has no end.
        *("--exclude-path-regex", "/stream$"),
        *("--request-timeout", "20", "--continue-on-failure", "--no-color"),
    ]
    done = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "SCHEMATHESIS_HOOKS": ""},
        capture_output=True,
        text=True,
        timeout=800,
    )
    assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
