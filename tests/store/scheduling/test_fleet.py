"""Which workers can run a job, and which are free, by the rows that real claims write."""

from dataclasses import replace
from typing import Any

import pytest

from service.contract.interactive.predictions import PredictionResult
from service.contract.routing import consumed_queues, most_for_one_job
from service.store.database import Database, db_now
from service.store.interactive import prediction_claims
from service.store.jobs import claims
from service.store.scheduling import registration
from service.store.scheduling.fleet import Fleet, LiveWorker
from service.store.tables.workers import WorkerRow
from tests.support.factories import claim_job, make_job
from tests.support.store.job_rows import WORKER, put
from tests.support.store.predictions import claim_prediction, make_prediction
from tests.support.store.previews import claim_preview, make_preview, put_preview


def gpu(number: int, **values: Any) -> dict[str, Any]:
    return {"type": "cuda", "uuid": f"GPU-{number}", "name": "a GPU", "mig": False, **values}


def register(database: Database, name: str, devices: list[dict[str, Any]], **values: Any) -> None:
    queues = consumed_queues(values.pop("queues", ["cpu", "gpu"]), most_for_one_job(devices))
    cpu = [{"type": "cpu", "name": "a CPU"}]
    info = replace(WORKER, id=name, devices=devices or cpu, queues=queues, **values)
    with database.write() as session:
        registration.register(session, info)


def read(database: Database) -> Fleet:
    with database.read() as session:
        return Fleet.read(session.connection(), 30)


def only(database: Database) -> LiveWorker:
    [worker] = read(database).workers
    return worker


class TestFleet:
    def test_no_workers(self, database: Database) -> None:
        assert read(database) == Fleet(())
        assert read(database).most_gpus == 0

    def test_a_silent_worker_is_not_live(self, database: Database) -> None:
        register(database, "one", [])
        with database.write() as session:
            session.get_one(WorkerRow, "one").last_seen_at = db_now(-31)
        assert not read(database).workers

    @pytest.mark.parametrize("packages", [None, [], ["torchao"]])
    def test_its_packages(self, database: Database, packages: list[str] | None) -> None:
        register(database, "one", [], packages=packages)
        assert only(database).packages == (None if packages is None else frozenset(packages))

    def test_a_slot_is_taken_by_a_claimed_job(self, database: Database) -> None:
        register(database, "one", [], slots=2)
        claim_job(database, make_job(database), "one")
        assert (only(database).running, only(database).is_free("cpu")) == (1, True)
        claim_job(database, make_job(database), "one")
        assert (only(database).running, only(database).is_free("cpu")) == (2, False)

    def test_whoever_answers_a_prediction_is_known(self, database: Database) -> None:
        """In the same statement, so that an end in between does not look like a job's."""
        register(database, "one", [gpu(0)], slots=1)
        assert not only(database).answers
        asked = make_prediction(database)
        claimed = claim_prediction(database, asked, "one")
        found = only(database)
        assert (found.answers, found.running, found.free_gpus) == (True, 1, 1)
        assert claimed is not None
        with database.write() as session:
            prediction_claims.end(session, claimed, PredictionResult())
        assert (only(database).answers, only(database).running) == (False, 0)
        claim_job(database, make_job(database), "one")
        assert not only(database).answers

    def test_a_slot_is_taken_by_a_preview_until_it_has_ended(self, database: Database) -> None:
        register(database, "one", [gpu(0)], slots=1)
        mine = make_preview(database)
        claim_preview(database, mine, "one")
        worker = only(database)
        assert (worker.running, worker.is_free("cpu"), worker.free_gpus) == (1, False, 1)
        put_preview(database, mine, state="succeeded")
        assert only(database).is_free("cpu")

    def test_gpus_are_taken_by_a_claimed_job(self, database: Database) -> None:
        register(database, "one", [gpu(0), gpu(1), gpu(2)], slots=5)
        job = make_job(database)
        put(database, job, queue="gpu.2", min_gpus=2)
        with database.write() as session:
            queues, two = ["gpu.2"], ["GPU-0", "GPU-1"]
            assert claims.claim(session, job, "one", queues=queues, gpus=two, lease_seconds=60)
        worker = only(database)
        assert (worker.most_gpus, worker.free_gpus) == (3, 1)
        assert [worker.is_free(queue) for queue in ("cpu", "gpu", "gpu.2")] == [True, True, False]

    def test_workers_of_one_host_share_their_gpus(self, database: Database) -> None:
        register(database, "one", [gpu(0)], slots=3)
        register(database, "two", [gpu(0), gpu(1)], slots=3)
        register(database, "three", [gpu(7)], slots=3)
        job = make_job(database)
        put(database, job, queue="gpu")
        claim_job(database, job, "one")
        assert sorted(worker.free_gpus for worker in read(database).workers) == [0, 1, 1]

    def test_a_job_on_gpus_of_another_worker_takes_no_slot(self, database: Database) -> None:
        register(database, "one", [gpu(0)], slots=3)
        register(database, "two", [gpu(0), gpu(1)], slots=3)
        job = make_job(database)
        put(database, job, queue="gpu.2", min_gpus=2)
        with database.write() as session:
            queues, both = ["gpu.2"], ["GPU-0", "GPU-1"]
            assert claims.claim(session, job, "two", queues=queues, gpus=both, lease_seconds=60)
        one, two = sorted(read(database).workers, key=lambda worker: worker.running)
        assert (one.free_gpus, one.running, two.free_gpus, two.running) == (0, 0, 0, 1)
        assert (one.is_free("cpu"), one.is_free("gpu")) == (True, False)

    @pytest.mark.parametrize(
        ("devices", "queue", "min_gpus", "can"),
        [
            ([], "cpu", 0, True),
            ([], "gpu", 0, True),
            ([], "gpu", 1, False),
            ([gpu(0), gpu(1)], "gpu.2", 2, True),
            ([gpu(0), gpu(1, uuid=None, problem="it does not answer")], "gpu.2", 2, False),
            ([gpu(0, mig=True), gpu(1, mig=True)], "gpu", 1, True),
            ([gpu(0, mig=True), gpu(1, mig=True)], "gpu.2", 2, False),
        ],
    )
    def test_says_what_a_claim_does(
        self, database: Database, devices: list[Any], queue: str, min_gpus: int, can: bool
    ) -> None:
        register(database, "one", devices)
        worker = only(database)
        job = make_job(database)
        put(database, job, queue=queue, min_gpus=min_gpus)
        gpus = [device["uuid"] for device in devices][: worker.most_gpus]
        with database.write() as session:
            queues = sorted(worker.queues)
            claimed = claims.claim(session, job, "one", queues=queues, gpus=gpus, lease_seconds=60)
        assert worker.can_run(queue, min_gpus) is can
        assert (claimed is not None) is can
