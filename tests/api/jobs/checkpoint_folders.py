"""Checkpoints on disk, with their rows."""

from pathlib import Path
from typing import Any

from service.store.tables.jobs import CheckpointRow
from tests.api.conftest import Server
from tests.api.factories import START, add_job
from worker.storage import atomic_dir

FILES = {"model.safetensors": b"m" * 1000, "optimizer.pt": b"o" * 2_500_000, "empty": b""}


def write(folder: Path) -> None:
    with atomic_dir.writing(folder) as partial:
        for name, content in FILES.items():
            (partial / name).write_bytes(content)


def add(server: Server, step: int = 10, **columns: Any) -> tuple[str, Path]:
    """A job with a checkpoint on disk; the checkpoint's URL and folder."""
    job_id = columns.pop("job_id", None) or add_job(server.database, state="succeeded", epoch=1)
    path = f"attempts/1/checkpoints/{step}"
    folder = server.settings.workspace(job_id) / path
    write(folder)
    known = {
        "path": path,
        "manifest_sha256": atomic_dir.manifest_sha256(folder),
        "bytes": atomic_dir.total_bytes(folder),
        "best": False,
        "metric": 0.5,
    }
    with server.database.write() as session:
        row = CheckpointRow(job_id=job_id, step=step, epoch=1, created_at=START)
        for name, value in (known | columns).items():
            setattr(row, name, value)
        session.add(row)
    return f"/v1/jobs/{job_id}/checkpoints/{step}", folder
