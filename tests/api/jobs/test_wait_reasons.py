"""Why a job waits: the page, the list and the answer to POST agree."""

from dataclasses import replace
from typing import Any

import pytest

from service.api.jobs import wait_reasons as waiting
from service.api.jobs.page import read_page
from service.contract.failures import Failure, FailureCode
from service.store.database import Database, clock, db_now
from service.store.jobs import claims, endings, wait_reasons
from service.store.jobs import listing as job_list
from service.store.jobs.endings import Ending, Policy
from service.store.scheduling import registration
from service.store.scope import EVERYTHING
from tests.api.conftest import Server
from tests.api.factories import SPEC, add_job, spec
from tests.support.factories import claim_job
from tests.support.store.databases import on_both
from tests.support.store.job_rows import WORKER, put
from tests.support.store.statements import sent

POLICY = Policy(crash_limit=3, retry_backoff_seconds=10)
NETWORK = Failure.from_code(FailureCode.NETWORK, "Could not reach huggingface.co for org/model.")


def register(server: Server, name: str = "one", **values: Any) -> None:
    with server.database.write() as session:
        registration.register(session, replace(WORKER, id=name, **values))


def waiting_of(server: Server, job_id: str) -> dict[str, Any]:
    """As the page and the list say it."""
    page = server.client.get(f"/v1/jobs/{job_id}").json()["waiting"]
    listed = server.client.get("/v1/jobs", params={"limit": 100}).json()["data"]
    assert [job["waiting"] for job in listed if job["id"] == job_id] == [page]
    return page  # type: ignore[no-any-return]


def fail(server: Server, job_id: str, failure: Failure = NETWORK) -> None:
    epoch = claim_job(server.database, job_id).epoch
    with server.database.write() as session:
        endings.end(session, job_id, epoch, Ending.failed(failure), POLICY)


def lose(server: Server, job_id: str) -> None:
    claim_job(server.database, job_id, lease_seconds=-1)
    with server.database.write() as session:
        assert endings.expire(session, job_id, POLICY) == "queued"


class TestHostThatLacksSomething:
    FULL = Failure.from_code(
        FailureCode.DISK_FULL,
        "The model needs 88 MiB on the disk, which has free now 60 MiB",
        bytes_needed=88,
        bytes_total=2000,
    )

    def test_says_what_it_lacks_and_counts_nothing(self, server: Server) -> None:
        job_id = add_job(server.database)
        for _ in range(3):
            fail(server, job_id, self.FULL)
            page = server.client.get(f"/v1/jobs/{job_id}").json()
            found = waiting_of(server, job_id)
            assert (page["state"], page["failure"]) == ("queued", None)
            assert found["reason"] == "insufficient_resources"
            assert found["message"] == (
                "waits for the worker's machine: the model needs 88 MiB on the disk, which has "
                "free now 60 MiB"
            )
            assert found["until"] == page["waits_until"]
            assert (found["attempt"], found["of"]) == (None, None)
            assert found["failure"]["code"] == "disk_full"
            put(server.database, job_id, not_before=db_now(-1))

    @pytest.mark.usefixtures("processes")  # a broker that answers
    def test_readiness_and_metrics_say_so(self, server: Server) -> None:
        fail(server, add_job(server.database), self.FULL)
        ready = server.client.get("/health/ready")
        assert ready.status_code == 200
        assert ready.json()["parts"]["disk"].startswith("low: 1 job waits for space; the disk has ")
        text = server.client.get("/metrics").text
        assert 'finetune_jobs_waiting_for_host{code="disk_full"} 1.0' in text
        assert 'finetune_jobs_waiting_for_host{code="insufficient_resources"} 0.0' in text


class TestBackoff:
    def test_says_which_retry_comes_when_and_why(self, server: Server) -> None:
        job_id = add_job(server.database)
        fail(server, job_id)
        page = server.client.get(f"/v1/jobs/{job_id}").json()
        found = waiting_of(server, job_id)
        assert found == page["waiting"]
        assert (found["reason"], found["attempt"], found["of"]) == ("backoff", 1, 3)
        assert found["message"] == "retry 1 of 3: could not reach huggingface.co for org/model"
        assert found["until"] == page["waits_until"]
        assert found["since"] < found["until"]
        assert found["failure"]["code"] == "network"
        assert page["failure"] is None

    def test_afterwards_it_waits_for_a_worker(self, server: Server) -> None:
        job_id = add_job(server.database)
        fail(server, job_id)
        with server.database.read() as session:
            put(server.database, job_id, not_before=clock(session))
        found = waiting_of(server, job_id)
        assert (found["reason"], found["until"]) == ("no_worker", None)
        assert (found["attempt"], found["failure"]["code"]) == (1, "network")

    def test_a_lost_worker(self, server: Server) -> None:
        register(server)
        job_id = add_job(server.database)
        lose(server, job_id)
        found = waiting_of(server, job_id)
        assert (found["reason"], found["attempt"], found["of"]) == ("queued", 1, 2)
        assert found["failure"]["code"] == "worker_lost"
        lose(server, job_id)
        assert waiting_of(server, job_id)["attempt"] == 2


class TestNoWorker:
    @pytest.mark.parametrize(
        ("columns", "message"),
        [
            (
                {"stage": "train", "queue": "gpu.4", "min_gpus": 4},
                "no live worker has 4 GPUs (the largest has 1): start one on a machine that has, "
                "or clone the job with fewer `resources.gpus`",
            ),
            (
                {"queue": "cpu"},
                "no live worker runs the stage prepare (CPU): start one with `finetune worker "
                "--queues cpu`",
            ),
        ],
    )
    def test_what_is_missing(self, server: Server, columns: dict[str, Any], message: str) -> None:
        gpu = {"type": "cuda", "uuid": "GPU-1", "name": "a GPU", "mig": False}
        register(server, queues=["gpu"], devices=[gpu])
        found = waiting_of(server, add_job(server.database, **columns))
        assert (found["reason"], found["message"]) == ("no_worker", message)
        assert (found["until"], found["failure"]) == (None, None)

    def test_the_answer_to_a_post_says_it(self, server: Server) -> None:
        posted = server.client.post("/v1/jobs", json=SPEC).json()
        assert posted["waiting"]["reason"] == "no_worker"
        assert posted["waiting"]["message"] == (
            "no worker is running: start one with `finetune worker --queues cpu`"
        )
        assert posted["waiting"] == waiting_of(server, posted["id"])
        assert posted["waiting"]["since"] == posted["created_at"]

    def test_a_gpu_on_machines_without(self, server: Server) -> None:
        register(server)
        job_id = add_job(server.database, stage="train", queue="gpu", min_gpus=1)
        message = waiting_of(server, job_id)["message"]
        assert message.startswith("no live worker has a GPU: start one on a machine that has")
        anywhere = add_job(server.database, stage="train", queue="gpu")
        assert waiting_of(server, anywhere)["reason"] == "queued"


class TestBusyWorkers:
    def test_one_worker(self, server: Server) -> None:
        register(server)
        claim_job(server.database, add_job(server.database), "one")
        first = add_job(server.database)
        second = server.client.post("/v1/jobs", json=spec(priority=9)).json()
        assert waiting_of(server, first)["reason"] == "busy_workers"
        assert waiting_of(server, first)["message"] == (
            "the only worker that can run it is busy; next in the queue"
        )
        assert second["waiting"]["message"] == (
            "the only worker that can run it is busy; number 2 in the queue"
        )

    def test_several_workers(self, server: Server) -> None:
        for name in ("one", "two"):
            register(server, name)
            claim_job(server.database, add_job(server.database), name)
        found = waiting_of(server, add_job(server.database))
        assert found["message"] == "all 2 workers that can run it are busy; next in the queue"

    def test_a_worker_with_another_slot_is_free(self, server: Server) -> None:
        register(server, slots=2)
        claim_job(server.database, add_job(server.database), "one")
        first, second = add_job(server.database), add_job(server.database)
        assert waiting_of(server, first)["message"] == (
            "next in the queue: a free worker takes it in a moment"
        )
        assert waiting_of(server, second)["message"] == "number 2 in the queue"
        assert waiting_of(server, second)["reason"] == "queued"

    def test_gpus_that_others_hold(self, server: Server) -> None:
        gpus = [{"type": "cuda", "uuid": f"GPU-{i}", "name": "G", "mig": False} for i in range(2)]
        register(server, devices=gpus, queues=["gpu", "gpu.2"], slots=4)
        job_id = add_job(server.database, stage="train", queue="gpu")
        with server.database.write() as session:
            uuids = ["GPU-0"]
            claims.claim(session, job_id, "one", queues=["gpu"], gpus=uuids, lease_seconds=60)
        wide = add_job(server.database, stage="train", queue="gpu.2", min_gpus=2)
        assert waiting_of(server, wide)["message"] == (
            "no worker has 2 free GPUs now; next in the queue"
        )


class TestOthers:
    def test_paused(self, server: Server) -> None:
        job_id = add_job(server.database)
        paused = server.client.post(f"/v1/jobs/{job_id}/pause").json()
        assert paused["waiting"] == waiting_of(server, job_id)
        assert paused["waiting"]["reason"] == "paused"
        assert paused["waiting"]["message"] == f"paused: `finetune resume {job_id}` continues it"
        assert paused["waiting"]["since"] == paused["updated_at"] > paused["created_at"]

    def test_a_trial_that_its_search_has_paused(self, server: Server) -> None:
        job_id = add_job(server.database, state="paused", search_id="search-1", trial=3)
        assert waiting_of(server, job_id)["message"] == (
            "paused: its search continues or ends it (`finetune search watch search-1`); "
            f"`finetune resume {job_id}` continues it now"
        )

    def test_a_message_that_is_not_sent(self, server: Server) -> None:
        register(server)
        job_id = add_job(server.database)
        with server.database.read() as session:
            put(server.database, job_id, next_publish_at=clock(session) - waiting._UNSENT)
        assert "check that the reconciler runs" in waiting_of(server, job_id)["message"]

    def test_a_job_that_is_claimed_while_the_list_is_read(self, server: Server) -> None:
        register(server, slots=2)
        job_id = add_job(server.database)
        with server.database.read() as session:
            rows, _ = job_list.list_jobs(
                session, EVERYTHING, job_list.JobFilter(), after=None, limit=1
            )
        claim_job(server.database, job_id, "one")
        with server.database.read() as session:
            found = waiting.of_list(session, EVERYTHING, rows, server.settings)
        assert found[job_id].message == "next in the queue: a free worker takes it in a moment"

    def test_a_job_behind_those_that_are_counted(
        self, server: Server, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(wait_reasons, "COUNTED", 2)
        *_, last = (add_job(server.database) for _ in range(3))
        register(server)
        [job] = server.client.get("/v1/jobs", params={"limit": 1}).json()["data"]
        assert (job["id"], job["waiting"]["message"]) == (
            last,
            "more than 2 jobs are ahead of it in the queue",
        )

    @pytest.mark.parametrize("state", ["running", "pausing", "cancelling", "succeeded", "failed"])
    def test_the_others_do_not_wait(self, server: Server, state: str) -> None:
        assert waiting_of(server, add_job(server.database, state=state)) is None


def listing(server: Server) -> int:
    """How many statements a list takes."""
    with sent(server.database) as statements, server.database.read() as session:
        rows, _ = job_list.list_jobs(
            session, EVERYTHING, job_list.JobFilter(), after=None, limit=100
        )
        waiting.of_list(session, EVERYTHING, rows, server.settings)
    return sum(statement.startswith("SELECT") for statement in statements)


@on_both
class TestCost:
    def test_a_list_of_many_takes_as_many_statements_as_of_few(self, server: Server) -> None:
        register(server)
        for failed in (True, False):
            job_id = add_job(server.database)
            if failed:
                fail(server, job_id)
        few = listing(server)
        for number in range(30):
            job_id = add_job(server.database)
            if number % 2:
                fail(server, job_id)
        assert listing(server) == few
        assert few <= 6

    def test_a_running_job_takes_none(self, server: Server, database: Database) -> None:
        running, queued = add_job(database), add_job(database)
        claim_job(database, running)
        with sent(database) as statements:
            read_page(database, EVERYTHING, running, server.settings)
        assert not [text for text in statements if "FROM workers" in text]
        with sent(database) as statements:
            read_page(database, EVERYTHING, queued, server.settings)
        assert len([text for text in statements if "FROM workers" in text]) == 1
