"""Jobs that start from the results of others: what is available, and which job needs which."""

from typing import Any

import pytest

from service.contract.states import JobState
from service.errors import JobInUseError, SourceJobError
from service.jobs import commands
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database, clock, db_now
from service.store.files import retention
from service.store.files.retention import EndedJob
from service.store.jobs import lineage, state
from service.store.jobs.lineage import Source
from service.store.scope import EVERYTHING
from tests.support.factories import make_spec, submit
from tests.support.store.job_rows import (
    PREPARED,
    TRAINED,
    add_checkpoint,
    finished_job,
    get,
    history_of,
    put,
)


def begun_with(database: Database, unreachable: Dispatcher, source_id: str, **changes: Any) -> str:
    return submit(database, unreachable, make_spec(model={"job": source_id}, **changes)).job_id


def model_of(database: Database, job_id: str, wanted: str | int | None = None) -> Source:
    with database.read() as session:
        return lineage.model_of(session, EVERYTHING, job_id, wanted)


@pytest.fixture
def unreachable() -> Dispatcher:
    return Dispatcher(Settings(redis_url=None))


class TestModelOf:
    def test_the_finished_model_is_the_default(self, sqlite_database: Database) -> None:
        job_id = finished_job(sqlite_database)
        found = model_of(sqlite_database, job_id)
        assert (found.step, found.path, found.sha256) == (None, TRAINED["output_dir"], "a" * 64)

    @pytest.mark.parametrize(("wanted", "step"), [("best", 10), ("last", 30), (20, 20)])
    def test_a_checkpoint(self, sqlite_database: Database, wanted: str | int, step: int) -> None:
        job_id = finished_job(sqlite_database)
        for each in (10, 20, 30):
            add_checkpoint(sqlite_database, job_id, each, best=each == 10)
        add_checkpoint(sqlite_database, job_id, 40, pruned_at=db_now())
        found = model_of(sqlite_database, job_id, wanted)
        assert (found.step, found.path) == (step, f"attempts/2/checkpoints/{step}")

    @pytest.mark.parametrize(
        ("spec", "columns", "wanted", "reason", "words"),
        [
            ({}, {"state": "running", "results": {}}, None, "job_not_ended", "wait until"),
            ({}, {"state": "running", "results": {}}, 10, "job_not_ended", "wait until"),
            ({}, {"state": "cancelled", "results": {}}, None, "no_model", "checkpoint: last"),
            ({}, {"workspace_pruned_at": db_now()}, None, "model_gone", "clone it"),
            ({}, {}, "best", "unknown_checkpoint", "no best checkpoint"),
            ({}, {}, 11, "unknown_checkpoint", "no checkpoint of step 11"),
            ({}, {}, 40, "checkpoint_gone", "was removed"),
            (
                {
                    "mode": "predict",
                    "dataset": {"source": "hub", "name": "squad", "test": "test"},
                },
                {"results": {"train": {"output_dir": None, "weights_sha256": None}}},
                None,
                "no_model",
                "Give the job that trained the one it used",
            ),
            ({"peft": {"method": "lora"}}, {}, None, "adapter_only", "peft.merge: true"),
            (
                {"peft": {"method": "lora", "merge": True}},
                {},
                "last",
                "adapter_only",
                "leave `model.checkpoint` out",
            ),
        ],
    )
    def test_refusals_name_an_action(
        self,
        sqlite_database: Database,
        spec: dict[str, Any],
        columns: dict[str, Any],
        wanted: str | int | None,
        reason: str,
        words: str,
    ) -> None:
        job_id = finished_job(sqlite_database, spec=spec, **columns)
        add_checkpoint(sqlite_database, job_id, 10)
        add_checkpoint(sqlite_database, job_id, 40, pruned_at=db_now())
        with pytest.raises(SourceJobError, match=words) as caught:
            model_of(sqlite_database, job_id, wanted)
        assert caught.value.extra["reason"] == reason
        assert job_id in caught.value.detail

    def test_a_job_that_does_not_exist(self, sqlite_database: Database) -> None:
        with pytest.raises(SourceJobError) as caught:
            model_of(sqlite_database, "job-0")
        assert caught.value.extra["reason"] == "unknown_job"

    def test_a_merged_adapter_and_a_cancelled_jobs_checkpoint_can_be_had(
        self, sqlite_database: Database
    ) -> None:
        merged = finished_job(sqlite_database, spec={"peft": {"method": "lora", "merge": True}})
        cancelled = finished_job(sqlite_database, state="cancelled", results={})
        add_checkpoint(sqlite_database, cancelled, 10)
        assert model_of(sqlite_database, merged).step is None
        assert model_of(sqlite_database, cancelled, "last").step == 10


class TestPublicName:
    def name(self, database: Database, job_id: str, *, whole: bool = True) -> Any:
        return lineage.public_name(model_of(database, job_id), whole=whole)

    def test_the_repository_that_it_was_pushed_to(self, sqlite_database: Database) -> None:
        pushed = {"hub_url": "https://huggingface.co/org/mlm", "hub_commit": "c" * 40}
        job_id = finished_job(sqlite_database, results={"train": TRAINED, "publish": pushed})
        assert self.name(sqlite_database, job_id) == ("org/mlm", "c" * 40)

    def test_otherwise_the_first_base_model(self, sqlite_database: Database) -> None:
        first = finished_job(sqlite_database)
        earlier = {"base_job": {"name": "org/first"}}
        second = finished_job(sqlite_database, results={"prepare": earlier, "train": TRAINED})
        assert self.name(sqlite_database, first) == ("org/model", None)
        assert self.name(sqlite_database, second) == ("org/first", None)

    def test_an_adapter_names_no_model_that_it_does_not_work_with(
        self, sqlite_database: Database
    ) -> None:
        job_id = finished_job(sqlite_database)
        assert self.name(sqlite_database, job_id, whole=False) == (f"/{job_id}", None)


class TestLineage:
    def test_it_is_written_in_both(self, database: Database, unreachable: Dispatcher) -> None:
        base = finished_job(database)
        one, two = begun_with(database, unreachable, base), begun_with(database, unreachable, base)
        assert history_of(database, one)[0].data["base_job"] == base
        derived = [row.data for row in history_of(database, base) if row.type == "derived"]
        assert derived == [{"job": one}, {"job": two}]
        with database.read() as session:
            assert lineage.derived(session, EVERYTHING, base) == [one, two]

    def test_a_removed_source_is_looked_up_again_when_the_job_is_created(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        with pytest.raises(SourceJobError, match="there is no job job-0"):
            begun_with(database, unreachable, "job-0")

    def test_a_live_job_keeps_its_source(
        self, database: Database, unreachable: Dispatcher, tmp_path: Any
    ) -> None:
        base = finished_job(database)
        settings = Settings(home=tmp_path)
        job_id = begun_with(database, unreachable, base)
        ended_at = get(database, base).ended_at
        assert ended_at is not None
        with pytest.raises(JobInUseError, match=job_id) as caught:
            commands.delete(database, settings, EVERYTHING, base)
        assert caught.value.extra == {"jobs": [job_id]}
        with database.write() as session:
            assert retention.prune_workspace(session, EndedJob(base, ended_at)) == []
        assert get(database, base).workspace_pruned_at is None
        put(database, job_id, state=JobState.CANCELLED, ended_at=db_now())
        with database.write() as session:
            retention.prune_workspace(session, EndedJob(base, ended_at))
        assert get(database, base).workspace_pruned_at is not None
        commands.delete(database, settings, EVERYTHING, base)

    def test_deleting_a_derived_job_forgets_it(
        self, database: Database, unreachable: Dispatcher, tmp_path: Any
    ) -> None:
        base = finished_job(database)
        job_id = begun_with(database, unreachable, base)
        put(database, job_id, state=JobState.FAILED, ended_at=db_now())
        commands.delete(database, Settings(home=tmp_path), EVERYTHING, job_id)
        with database.read() as session:
            assert lineage.derived(session, EVERYTHING, base) == []


class TestResumeFrom:
    """`training.resume_from`, on SQLite and Postgres."""

    def continuing(
        self, database: Database, unreachable: Dispatcher, base: str, **changes: Any
    ) -> str:
        return submit(
            database, unreachable, make_spec(training={"resume_from": {"job": base}}, **changes)
        ).job_id

    def test_one_job_can_be_both_sources(self, database: Database, unreachable: Dispatcher) -> None:
        base = finished_job(database)
        add_checkpoint(database, base, 10)
        job_id = self.continuing(database, unreachable, base, model={"job": base})
        assert history_of(database, job_id)[0].data["base_job"] == base
        assert history_of(database, base)[-1].data == {"job": job_id}
        with database.read() as session:
            assert lineage.derived(session, EVERYTHING, base) == [job_id]

    def test_a_removed_source_is_looked_up_again_when_the_job_is_created(
        self, database: Database, unreachable: Dispatcher
    ) -> None:
        base = finished_job(database)
        with pytest.raises(SourceJobError, match="no last checkpoint"):
            self.continuing(database, unreachable, base)

    def test_an_adapters_checkpoint_can_be_continued(self, sqlite_database: Database) -> None:
        base = finished_job(sqlite_database, spec={"peft": {"method": "lora"}})
        add_checkpoint(sqlite_database, base, 10)
        with sqlite_database.read() as session:
            assert lineage.checkpoint_of(session, EVERYTHING, base, "last").step == 10

    def test_a_job_that_does_not_train_has_none(self, sqlite_database: Database) -> None:
        data = {"source": "hub", "name": "squad", "test": "test"}
        base = finished_job(sqlite_database, spec={"mode": "predict", "dataset": data})
        with (
            sqlite_database.read() as session,
            pytest.raises(SourceJobError, match="its `mode` is `predict`") as caught,
        ):
            lineage.checkpoint_of(session, EVERYTHING, base, "last")
        assert caught.value.extra["reason"] == "no_model"


class TestRetry:
    def failed(self, database: Database, unreachable: Dispatcher, home: Any, base: str) -> str:
        """It failed in `train`; its base model is in the source's workspace."""
        job_id = begun_with(database, unreachable, base)
        model = Settings(home=home).workspace(base) / TRAINED["output_dir"]
        entry = home / PREPARED["prepared_dir"]
        for folder in (model, entry):
            folder.mkdir(parents=True, exist_ok=True)
        place = str(model.relative_to(home))
        prepared = PREPARED | {"model_dir": place, "tokenizer_dir": place}
        failed = {"state": JobState.FAILED, "stage": "train", "ended_at": db_now()}
        put(database, job_id, results={"prepare": prepared}, **failed)
        return job_id

    def test_at_its_stage_while_the_source_is_there(
        self, database: Database, unreachable: Dispatcher, tmp_path: Any
    ) -> None:
        base = finished_job(database)
        job_id = self.failed(database, unreachable, tmp_path, base)
        commands.retry(database, unreachable, Settings(home=tmp_path), EVERYTHING, job_id)
        assert (get(database, job_id).state, get(database, job_id).stage) == ("queued", "train")

    @pytest.mark.parametrize("change", ["deleted", "pruned"])
    def test_refused_if_the_source_was_removed(
        self, database: Database, unreachable: Dispatcher, tmp_path: Any, change: str
    ) -> None:
        """Even before its folder is removed."""
        base = finished_job(database)
        job_id = self.failed(database, unreachable, tmp_path, base)
        with database.write() as session:
            row = state.lock(session, EVERYTHING, base)
            assert row is not None
            if change == "deleted":
                session.delete(row)
            else:
                row.workspace_pruned_at = clock(session)
        with pytest.raises(SourceJobError):
            commands.retry(database, unreachable, Settings(home=tmp_path), EVERYTHING, job_id)
        assert get(database, job_id).state == "failed"
