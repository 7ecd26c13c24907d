"""A job whose prepared files are not in its home is prepared again, whoever finds that out."""

import json
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from service.contract.failures import FailureCode, StageError
from service.contract.states import JobState, Stage
from service.jobs import commands
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import user_actions
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobRow
from tests.supervision.support import run
from tests.support.factories import claim_job, make_job
from tests.support.store.databases import on_sqlite
from tests.support.store.job_rows import (
    PREPARED,
    TRAINED,
    failure_of,
    finished_job,
    get,
    history_of,
    put,
)
from tests.support.store.predictions import claim_prediction, make_prediction
from worker.supervision import stage_request
from worker.supervision.interactive import prediction_request
from worker.tracking.trackers import NullTracker


def prepared(database: Database, settings: Settings) -> str:
    """A job that waits for `train`, as the stub's `prepare` leaves it."""
    for place in ("prepared_dir", "model_dir"):
        (settings.home / PREPARED[place]).mkdir(parents=True)
    job_id = make_job(database)
    put(database, job_id, stage=Stage.TRAIN, queue="gpu", results={"prepare": PREPARED})
    return job_id


def remove_prepared(settings: Settings) -> None:
    shutil.rmtree(settings.cache_dir / "prepared")


def remove_model(settings: Settings) -> None:
    shutil.rmtree(settings.cache_dir / "hub")


def paused_and_resumed(database: Database, _settings: Settings, job_id: str) -> None:
    put(database, job_id, state=JobState.PAUSED)
    with database.write() as session:
        assert user_actions.resume(session, session.get_one(JobRow, job_id)) is JobState.QUEUED


def waiting(_database: Database, _settings: Settings, _job_id: str) -> None:
    pass


def trial_of_a_search(database: Database, _settings: Settings, job_id: str) -> None:
    put(database, job_id, search_id="search-1", trial=0)


@on_sqlite
class TestPreparedAgain:
    @pytest.mark.usefixtures("processes")
    @pytest.mark.parametrize(
        ("state", "remove"),
        [
            (waiting, remove_prepared),
            (paused_and_resumed, remove_model),
            (trial_of_a_search, remove_prepared),
        ],
    )
    def test_a_job_before_train(
        self,
        database: Database,
        settings: Settings,
        remove: Callable[[Settings], None],
        state: Callable[[Database, Settings, str], None],
    ) -> None:
        job_id = prepared(database, settings)
        remove(settings)
        state(database, settings, job_id)
        assert run(database, settings, job_id) is JobState.QUEUED
        row = get(database, job_id)
        assert (row.stage, row.queue, row.results) == ("prepare", "cpu", {"prepare": PREPARED})
        last = history_of(database, job_id)[-1]
        assert (last.type, last.data["retry"], last.data["next_stage"]) == (
            "attempt_failed",
            True,
            "prepare",
        )
        assert last.data["failure"]["code"] == "files_missing"
        assert [run(database, settings, job_id) for _ in range(2)] == [JobState.QUEUED] * 2
        assert get(database, job_id).stage == Stage.PUBLISH

    def test_a_retry_after_a_failure(self, database: Database, settings: Settings) -> None:
        job_id = prepared(database, settings)
        put(database, job_id, state=JobState.FAILED, ended_at=db_now())
        remove_prepared(settings)
        unreachable = Dispatcher(Settings(redis_url=None))
        commands.retry(database, unreachable, settings, EVERYTHING, job_id)
        retried = history_of(database, job_id)[-1]
        assert (retried.type, retried.data["missing"]) == ("retried", ["prepared_data"])
        assert get(database, job_id).stage == Stage.PREPARE

    @pytest.mark.usefixtures("processes")
    def test_not_again_and_again(self, database: Database, settings: Settings) -> None:
        """As where workers do not share the home."""
        job_id = prepared(database, settings)
        for state in (JobState.QUEUED, JobState.QUEUED, JobState.FAILED):
            remove_prepared(settings)
            assert run(database, settings, job_id) is state
            if state is JobState.QUEUED:
                run(database, settings, job_id)
        failure = failure_of(database, job_id)
        assert failure["code"] == "files_missing"
        assert failure["details"] == {"missing": ["prepared_data"]}
        assert f"`finetune retry {job_id}`" in failure["action"]


@pytest.mark.usefixtures("processes")
@on_sqlite
class TestStoredForm:
    @pytest.mark.parametrize("through", ["home", "link", "relative"])
    def test_is_the_same_wherever_the_home_is(
        self,
        database: Database,
        settings: Settings,
        tmp_path: Path,
        monkeypatch: pytest.MonkeyPatch,
        through: str,
    ) -> None:
        settings.home.mkdir(exist_ok=True)
        (tmp_path / "link").symlink_to(settings.home)
        monkeypatch.chdir(settings.home.parent)
        places = {
            "home": settings.home,
            "link": tmp_path / "link",
            "relative": Path(settings.home.name),
        }
        given = Settings(home=places[through], sandbox_read=settings.sandbox_read)
        job_id = make_job(database)
        assert run(database, given, job_id) is JobState.QUEUED
        stored = get(database, job_id).results["prepare"]
        assert {name: stored[name] for name in PREPARED if name.endswith("_dir")} == {
            name: place for name, place in PREPARED.items() if name.endswith("_dir")
        }
        assert str(tmp_path) not in json.dumps(stored)


@on_sqlite
class TestPrediction:
    @pytest.mark.parametrize("where", ["here", "removed", "another home"])
    def test_of_an_adapter_whose_base_model_is(
        self, database: Database, settings: Settings, tmp_path: Path, where: str
    ) -> None:
        model = settings.home / PREPARED["model_dir"]
        other = tmp_path / "original" / PREPARED["model_dir"]
        for folder in (model, other):
            folder.mkdir(parents=True)
            (folder / "weights").touch()
        target = other if where == "another home" else model
        (model / "model.safetensors").symlink_to(target / "weights")
        if where == "removed":
            (model / "weights").unlink()
        results = {"prepare": PREPARED, "train": TRAINED}
        adapter = {"peft": {"method": "lora"}, "task": "causal-lm"}
        job_id = finished_job(database, spec=adapter, results=results)
        claimed = claim_prediction(database, make_prediction(database, model={"job": job_id}))
        assert claimed is not None
        if where == "here":
            source = prediction_request.resolve(database, settings, claimed)
            assert source.trained is not None
            assert source.trained.base == model
            return
        with pytest.raises(StageError, match="base model was removed") as caught:
            prediction_request.resolve(database, settings, claimed)
        assert caught.value.failure.code is FailureCode.MODEL_NOT_FOUND


@on_sqlite
class TestRequest:
    def test_holds_no_path_of_another_home(
        self, database: Database, settings: Settings, tmp_path: Path
    ) -> None:
        """Also where the other home can be read."""
        original = tmp_path / "original"
        absolute = {
            name: str(original / place) for name, place in PREPARED.items() if name.endswith("_dir")
        }
        for place in absolute.values():
            Path(place).mkdir(parents=True, exist_ok=True)
        result = PREPARED | absolute
        job_id = make_job(database)
        put(database, job_id, results={"prepare": result})
        again = stage_request.build(database, settings, NullTracker(), claim_job(database, job_id))
        assert str(original) not in again.model_dump_json()
        assert again.prepared is not None
        assert again.prepared.data_fingerprint == "f" * 64, "it must be prepared the same"
        put(database, job_id, state=JobState.QUEUED, stage=Stage.TRAIN, worker_id=None)
        claim = claim_job(database, job_id)
        with pytest.raises(StageError) as caught:
            stage_request.build(database, settings, NullTracker(), claim)
        assert caught.value.failure.code is FailureCode.FILES_MISSING
        assert caught.value.failure.details == {
            "missing": ["prepared_data", "base_model", "tokenizer"]
        }
