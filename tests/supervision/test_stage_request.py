"""What a stage's request contains about its job."""

from pathlib import Path

from service.settings import Settings
from service.store.database import Database
from tests.support.factories import add_file, claim_job, make_job
from worker.supervision import stage_request
from worker.tracking.trackers import NullTracker


class TestBuild:
    def test_names_the_uploaded_files_as_their_user_does(
        self, database: Database, tmp_path: Path
    ) -> None:
        settings = Settings(home=tmp_path)
        settings.files_dir.mkdir(parents=True)
        (settings.files_dir / "file-1").write_text("text\na\n")
        add_file(database, "file-1", filename="mine.csv", size=7)
        dataset = {"source": "upload", "train": ["file-1"]}
        claim = claim_job(database, make_job(database, dataset=dataset))
        request = stage_request.build(database, settings, NullTracker(), claim)
        assert request.files == {"file-1": settings.files_dir / "file-1"}
        assert request.file_names == {"file-1": "mine.csv"}
