"""Files of jobs that the tests of the command line download."""

import hashlib
from pathlib import Path

from service.cli.models import whole_folder
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.tables.jobs import ArtifactRow, CheckpointRow
from worker.storage import atomic_dir


def add_artifacts(store: Database, home: Path, job_id: str, files: dict[str, bytes]) -> None:
    """Artifacts of the job."""
    for name, content in files.items():
        path = Settings(home=home).workspace(job_id) / "attempts" / "1" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
        with store.write() as session:
            row = ArtifactRow(
                job_id=job_id,
                name=name,
                path=f"attempts/1/{name}",
                bytes=len(content),
                sha256=hashlib.sha256(content).hexdigest(),
                created_at=db_now(),
            )
            session.merge(row)


def content(folder: Path) -> dict[str, bytes]:
    return {
        path.relative_to(folder).as_posix(): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file() and path.name != whole_folder.MANIFEST
    }


def add_checkpoint(
    store: Database,
    home: Path,
    job: str,
    step: int,
    weights: bytes = b"weights",
    *,
    pruned: bool = False,
) -> None:
    path = f"attempts/1/checkpoints/{step}"
    folder = Settings(home=home).workspace(job) / path
    with atomic_dir.writing(folder) as partial:
        (partial / "model.safetensors").write_bytes(weights)
    with store.write() as session:
        session.add(
            CheckpointRow(
                job_id=job,
                step=step,
                epoch=1,
                path=path,
                bytes=7,
                manifest_sha256=atomic_dir.manifest_sha256(folder),
                metric=0.5,
                best=step == 10,
                created_at=db_now(),
                pruned_at=db_now() if pruned else None,
            )
        )
