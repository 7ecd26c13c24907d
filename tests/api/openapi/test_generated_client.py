"""What openapi-python-client makes of the document: without a warning, and it works."""

import importlib
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from service.api.openapi.document import EXAMPLE_JOBS
from service.contract.spec.spec import JobSpec
from tests.api.conftest import Server
from tests.api.factories import SPEC

# `make` installs it there: it asks for an older typer than the service's.
GENERATOR = Path(sys.prefix) / "openapi-python-client"
ANONYMOUS = re.compile(r"class (\w*Type\d+\w*|\w+\d)\(?[:(]")
DOCUMENTED = Path(__file__).parents[3] / "docs" / "http-api.md"
ROWS = b'{"text": "good", "label": 1}\n'


def generate(url: str, folder: Path) -> None:
    if not GENERATOR.is_dir() and os.environ.get("CI") != "true":
        pytest.skip("no openapi-python-client here: `make .venv/.dev` installs it")
    done = subprocess.run(
        [
            *(sys.executable, "-m", "openapi_python_client", "generate"),
            *("--url", f"{url}/openapi.json", "--output-path", str(folder)),
            *("--meta", "none", "--fail-on-warning"),
        ],
        cwd=folder.parent,
        # It formats what it wrote with the ruff in PATH.
        env={
            **os.environ,
            "PYTHONPATH": str(GENERATOR),
            "PATH": f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}",
        },
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stdout[-5000:] + done.stderr[-2000:]


@pytest.fixture
def client(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, processes: None
) -> Iterator[Any]:
    """The generated package."""
    folder = tmp_path / "finetune_api"
    generate(server.url, folder)
    monkeypatch.syspath_prepend(tmp_path)
    yield importlib.import_module("finetune_api")
    for name in [name for name in sys.modules if name.partition(".")[0] == "finetune_api"]:
        del sys.modules[name]


def operation(tag: str, name: str) -> Any:
    return importlib.import_module(f"finetune_api.api.{tag}.{name}").sync


class TestGeneratedClient:
    @pytest.mark.heavy
    def test_uploads_submits_reads_lists_and_names_problems(
        self, client: Any, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        source = "".join(file.read_text() for file in Path(client.__path__[0]).rglob("*.py"))
        assert ANONYMOUS.findall(source) == []
        models, types = (
            importlib.import_module(f"finetune_api.{part}") for part in ("models", "types")
        )
        with client.Client(base_url=server.url, raise_on_unexpected_status=True) as api:
            file = operation("files", "create_file")(
                client=api,
                body=models.CreateFileBody(
                    file=types.File(payload=ROWS, file_name="rows.jsonl"),
                    purpose=models.CreateFileBodyPurpose.FINE_TUNE,
                ),
            )
            assert (file.filename, file.bytes_) == ("rows.jsonl", len(ROWS))
            spec = models.JobSpec(
                name="generated",
                task=models.TextClassificationSpec(type_="text-classification"),
                model=models.ModelSpec(name_or_path="org/model"),
                dataset=models.UploadDataset(source="upload", train=[file.id]),
                # Another name of `bf16`: the client sends the defaults of all other options.
                training=models.TrainingSpec(
                    max_steps=10, precision=models.TrainingSpecPrecision.BF16
                ),
                metadata=models.JobSpecMetadata.from_dict({"team": "search"}),
            )
            made = operation("jobs", "create_job")(client=api, body=spec)
            assert isinstance(made, models.SubmittedJob), made
            assert (made.name, made.state) == ("generated", models.JobState.QUEUED)
            job = operation("jobs", "get_job")(client=api, job_id=made.id)
            assert isinstance(job, models.Job)
            assert job.spec.training.max_steps == 10
            assert job.spec.training.bf16 is True
            assert job.spec.dataset.train == [file.id]
            assert job.spec.to_dict() == server.client.get(f"/v1/jobs/{made.id}").json()["spec"]
            found = operation("jobs", "list_jobs")(client=api, metadata=["team:search"])
            assert [each.id for each in found.data] == [made.id]
            clone = operation("jobs", "clone_job")(
                client=api, job_id=made.id, body=models.JobPatch.from_dict({"priority": 2})
            )
            assert (clone.priority, clone.cloned_from) == (2, made.id)
            missing = operation("jobs", "get_job")(client=api, job_id="job-00")
            assert isinstance(missing, models.Problem)
            assert missing.message == "Job not found. There is no job 'job-00'."
            wrong = models.JobSpec.from_dict(SPEC)
            wrong.training = models.TrainingSpec(learning_rate=-1.0)
            refused = operation("jobs", "create_job")(client=api, body=wrong)
            assert [fault.path for fault in refused.errors] == ["training.learning_rate"]
        self.documented_lines_work(server, monkeypatch)
        for example in EXAMPLE_JOBS.values():
            stored = JobSpec.model_validate(example["value"]).model_dump(mode="json")
            assert models.JobSpec.from_dict(stored).to_dict() == stored

    def documented_lines_work(self, server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
        section = DOCUMENTED.read_text(encoding="utf-8").partition("## Generate a client")[2]
        lines = section.partition("```python\n")[2].partition("```")[0]
        names: dict[str, Any] = {}
        monkeypatch.setenv("FINETUNE_API_KEY", "ft-none")
        exec(lines.replace("http://127.0.0.1:8000", server.url), names)
        assert names["job"].spec.training.max_steps == 100
