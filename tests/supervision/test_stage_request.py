"""What a stage is told about its job."""

from pathlib import Path

from service.settings import Settings
from service.store import files
from service.store.database import Database
from service.store.owner_models import DEFAULT_PROJECT
from tests.support.factories import claim_job, make_job
from worker.supervision import stage_request
from worker.tracking.trackers import NullTracker


class TestBuild:
    def test_names_the_uploaded_files_as_their_user_does(
        self, database: Database, tmp_path: Path
    ) -> None:
        settings = Settings(home=tmp_path)
        settings.files_dir.mkdir(parents=True)
        (settings.files_dir / "file-1").write_text("text\na\n")
        with database.write() as session:
            files.add(
                session,
                DEFAULT_PROJECT,
                file_id="file-1",
                filename="mine.csv",
                purpose="fine-tune",
                size=7,
                sha256="0" * 64,
            )
        dataset = {"source": "upload", "train": ["file-1"]}
        claim = claim_job(database, make_job(database, dataset=dataset))
        request = stage_request.build(database, settings, NullTracker(), claim)
        assert request.files == {"file-1": settings.files_dir / "file-1"}
        assert request.file_names == {"file-1": "mine.csv"}
