"""Which checkpoint a stage gets in a job with `training.resume_from`."""

import shutil
from pathlib import Path
from typing import Any

import pytest

from service.contract.failures import FailureCode, StageError
from service.contract.stage import home_paths
from service.contract.stage.events import CheckpointSaved
from service.contract.stage.stages import ResumeSource, StageRequest
from service.contract.states import Stage
from service.jobs import stage_outputs
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import attempt_reports, endings
from service.store.jobs.claims import Claim
from service.store.tables.jobs import AttemptRow, JobRow
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.store import job_rows
from tests.support.store.job_rows import add_checkpoint, finished_job, history_of, put
from worker.storage import atomic_dir
from worker.supervision import stage_request
from worker.tracking.trackers import NullTracker

PREPARED = job_rows.PREPARED | {"model_revision": "c" * 40}


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    for place in ("prepared_dir", "model_dir"):
        (tmp_path / PREPARED[place]).mkdir(parents=True)
    return Settings(home=tmp_path)


def build(database: Database, settings: Settings, claim: Claim) -> StageRequest:
    return stage_request.build(database, settings, NullTracker(), claim)


@pytest.fixture
def base(database: Database) -> str:
    results = {"prepare": PREPARED, "train": {"output_dir": "attempts/2/output"}}
    job_id = finished_job(database, results=results)
    for step in (10, 20):
        add_checkpoint(database, job_id, step)
    return job_id


class TestPrepare:
    def test_it_gets_the_checkpoints_path_and_its_origin(
        self, database: Database, settings: Settings, base: str
    ) -> None:
        claim = claim_job(database, make_job(database, training={"resume_from": {"job": base}}))
        assert build(database, settings, claim).resume_source == ResumeSource(
            job=base,
            step=20,
            folder=settings.workspace(base) / "attempts/2/checkpoints/20",
            sha256="b" * 64,
            data_fingerprint="f" * 64,
            model_revision="c" * 40,
        )

    def test_prepared_again_it_keeps_the_one_that_it_took(
        self, database: Database, settings: Settings, base: str
    ) -> None:
        """The other job may have newer ones after a retry, or may be deleted."""
        job_id = make_job(database, training={"resume_from": {"job": base}})
        taken, prepared = already_taken(settings, job_id, base)
        put(database, job_id, results={"prepare": prepared})
        request = build(database, settings, claim_job(database, job_id))
        assert request.resume_source == taken

    def test_a_missing_one_ends_the_job(
        self, database: Database, settings: Settings, base: str
    ) -> None:
        claim = claim_job(database, make_job(database, training={"resume_from": {"job": base}}))
        put(database, base, workspace_pruned_at=db_now())
        with pytest.raises(StageError, match=base) as caught:
            build(database, settings, claim)
        assert caught.value.failure.code is FailureCode.CHECKPOINT_UNREADABLE


def already_taken(
    settings: Settings, job_id: str, base: str
) -> tuple[ResumeSource, dict[str, Any]]:
    """The checkpoint in the job's own folder, and the result of the `prepare` that linked it."""
    folder = settings.workspace(job_id) / "attempts/1/resume_from/10"
    folder.mkdir(parents=True)
    taken = ResumeSource(
        job=base,
        step=10,
        folder=folder,
        sha256="b" * 64,
        data_fingerprint="f" * 64,
        model_revision="c" * 40,
    )
    stored = taken.model_dump(mode="json", context=home_paths.Of(settings.home))
    return taken, PREPARED | {"resume_source": stored}


class TestTrain:
    def test_the_other_jobs_until_there_is_one_of_its_own(
        self, database: Database, settings: Settings, base: str
    ) -> None:
        job_id = make_job(database, training={"resume_from": {"job": base}})
        taken, prepared = already_taken(settings, job_id, base)
        put(database, job_id, stage=Stage.TRAIN, results={"prepare": prepared})
        first = claim_job(database, job_id)
        request = build(database, settings, first)
        assert (request.resume_from, request.continues_other_job) == (taken.folder, True)
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data) == ("resumed", {"step": 10, "job": base})
        with database.read() as session:
            attempt = session.get_one(AttemptRow, (job_id, first.epoch))
            assert attempt.resumed_from_step == 10

        own = save(settings.workspace(job_id), step=12)
        with database.write() as session:
            attempt_reports.record(session, job_id, first.epoch, [own])
            endings.end(session, job_id, first.epoch, endings.Ending.released(), POLICY)
        shutil.rmtree(taken.folder)
        request = build(database, settings, claim_job(database, job_id))
        assert request.resume_from == settings.workspace(job_id) / own.path
        assert not request.continues_other_job
        assert history_of(database, job_id)[-1].data == {"step": 12}


def save(workspace: Path, step: int) -> CheckpointSaved:
    folder = workspace / "attempts" / "1" / "checkpoints" / str(step)
    with atomic_dir.writing(folder) as partial:
        (partial / "model.safetensors").write_bytes(b"weights")
    return CheckpointSaved(
        step=step,
        path=str(folder.relative_to(workspace)),
        bytes=atomic_dir.total_bytes(folder),
        manifest_sha256=atomic_dir.manifest_sha256(folder),
    )


class TestRetry:
    def test_without_the_checkpoint_that_it_took_it_is_prepared_again(
        self, settings: Settings
    ) -> None:
        folder = settings.home / "job" / "resume_from" / "10"
        taken = {
            "job": "job-0",
            "step": 10,
            "folder": "job/resume_from/10",
            "sha256": "b" * 64,
            "data_fingerprint": "f" * 64,
            "model_revision": None,
        }
        prepared = PREPARED | {"resume_source": taken}
        row = JobRow(id="job-1", stage="train", state="failed", results={"prepare": prepared})
        first = stage_outputs.first_stage(row, Stage.TRAIN, settings, ())
        assert first == (Stage.PREPARE, ["checkpoint_of_other_job"])
        folder.mkdir(parents=True)
        assert stage_outputs.first_stage(row, Stage.TRAIN, settings, ()) == (Stage.TRAIN, [])
