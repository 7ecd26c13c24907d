"""Results of stages whose folders exist."""

import hashlib
from pathlib import Path
from typing import Any

from service.store.tables.jobs import ArtifactRow
from tests.api.conftest import Server
from tests.api.factories import START


def prepared(server: Server, job_id: str) -> dict[str, Any]:
    """A result of `prepare` whose folders exist; the base model was made from scratch."""
    entry = server.settings.cache_dir / "prepared" / ("a" * 64)
    model = server.settings.workspace(job_id) / "attempts" / "1" / "base_model"
    tokenizer = server.settings.cache_dir / "tokenizer"
    for folder in (entry, model, tokenizer):
        folder.mkdir(parents=True, exist_ok=True)
    home = server.settings.home
    return {
        "prepared_dir": str(entry.relative_to(home)),
        "model_dir": str(model.relative_to(home)),
        "tokenizer_dir": str(tokenizer.relative_to(home)),
        "model_revision": None,
        "dataset_revision": None,
        "data_fingerprint": "a" * 64,
        "splits": {},
    }


def trained(server: Server, job_id: str) -> dict[str, Any]:
    output = "attempts/2/output"
    (server.settings.workspace(job_id) / output).mkdir(parents=True, exist_ok=True)
    return {"output_dir": output, "metrics": {}, "baseline": {}, "steps": 1, "epochs": 1.0}


def log_of(server: Server, job_id: str) -> Path:
    """Where the job's log is written; the folder exists."""
    path = server.settings.workspace(job_id) / "job.log"
    path.parent.mkdir(parents=True)
    return path


def artifact(server: Server, job_id: str, name: str, path: str, content: bytes) -> Path:
    """A file of the workspace with its row; a link that is there already is left as it is."""
    file = server.settings.workspace(job_id) / path
    file.parent.mkdir(parents=True, exist_ok=True)
    if not file.is_symlink():
        file.write_bytes(content)
    row = ArtifactRow(
        job_id=job_id,
        name=name,
        path=path,
        bytes=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        created_at=START,
    )
    with server.database.write() as session:
        session.merge(row)
    return file
