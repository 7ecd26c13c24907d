"""schemathesis over the OpenAPI document: no 5xx, nothing that the document does not declare."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.api.conftest import Server
from tests.api.factories import add_job

pytestmark = pytest.mark.long

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)


class TestConformance:
    def test_positive_and_negative_data(self, server: Server, tmp_path: Path) -> None:
        add_job(server.database)
        # Most faults do not depend on the database: one kind gets every case.
        whole = server.database.engine.dialect.name == "postgresql"
        phases, examples = ("examples,coverage,fuzzing", 15) if whole else ("examples,fuzzing", 5)
        # Its body is that of POST /v1/jobs, of which the coverage phase makes thousands of cases.
        left_out = ["--exclude-path", "/v1/jobs/validate"] if whole else []
        command = [
            *(sys.executable, "-m", "schemathesis.cli", "run", f"{server.url}/openapi.json"),
            *("--checks", CHECKS, "--phases", phases, "--mode", "all"),
            *("--max-examples", str(examples), "--seed", "1", "--generation-database", "none"),
            *("--request-timeout", "20", "--continue-on-failure", "--no-color", *left_out),
        ]
        done = subprocess.run(
            command,
            cwd=tmp_path,
            env={**os.environ, "SCHEMATHESIS_HOOKS": ""},
            capture_output=True,
            text=True,
            timeout=240,
        )
        assert done.returncode == 0, done.stdout[-20_000:] + done.stderr[-2000:]
