"""`hub.strategy`: the real supervisor, real pushes and the real client, against the Hub double."""

import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.jobs import endings, user_actions
from service.store.jobs import state as jobs
from service.store.jobs.claims import Claim
from service.store.scope import EVERYTHING
from tests.support.factories import POLICY, claim_job, make_job
from tests.support.hub import HubDouble
from tests.support.servers.services import wait_until
from tests.support.stages import training as stub_training
from tests.support.store.flaky import Flaky
from tests.support.store.job_rows import history_of, put
from worker.supervision import stage_request, supervisor
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker

TOKEN = "hf_pushTests0123456789"
SLOW = r"/lfs/[0-9a-f]{64}"


@pytest.fixture
def database_url(tmp_path: Path, sqlite_template: Path) -> str:
    """One kind is enough: other tests run these statements on both."""
    path = tmp_path / "finetune.db"
    path.write_bytes(sqlite_template.read_bytes())
    return f"sqlite:///{path}"


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with HubDouble({TOKEN: {"org"}}) as hub:
        yield hub


@pytest.fixture
def settings(settings: Settings, hub: HubDouble, monkeypatch: pytest.MonkeyPatch) -> Settings:
    monkeypatch.setenv("HF_HUB_DISABLE_XET", "1")
    given = Settings(hub_token=TOKEN, hub_endpoint=hub.endpoint)
    names = ("hub_token", "hub_endpoint")
    return settings.model_copy(update={name: getattr(given, name) for name in names})


class Training:
    """A job whose training runs in this process's main thread, while another thread directs it."""

    def __init__(self, database: Database, settings: Settings, hub: HubDouble, **job: Any) -> None:
        strategy = job.pop("strategy", "every_save")
        target = {"model_id": "org/m", "strategy": strategy, **job.pop("target", {})}
        self.database, self.settings, self.hub = database, settings, hub
        self.id = make_job(database, hub=target, **job)
        self.workspace = settings.workspace(self.id)
        put(database, self.id, stage="train")

    def run(self, script: Callable[["Training"], None]) -> JobState | None:
        """Train as `script` directs; its errors fail the test."""
        claimed = claim_job(self.database, self.id)
        errors: list[BaseException] = []

        def follow() -> None:
            try:
                wait_until(self.workspace.exists, 10, "the stage")
                script(self)
            except BaseException as error:
                errors.append(error)
            finally:
                (self.workspace / "finish").touch()

        thread = threading.Thread(target=follow)
        thread.start()
        state = self._run(claimed)
        thread.join()
        if errors:
            raise errors[0]
        return state

    def _run(self, claimed: Claim) -> JobState | None:
        stages = stub_training.command
        made = Supervisor(self.database, self.settings, NullTracker(), command=stages)
        return made.supervise(claimed)

    # ---- what a script can do and read --------------------------------------------------------

    def save(self, step: int) -> None:
        (self.workspace / f"save-{step}").touch()
        wait_until(lambda: step in self.saved(), 10, f"checkpoint {step}")

    def saved(self) -> list[int]:
        return [row.data["step"] for row in self._events("checkpoint")]

    def wait_for_notices(self, count: int) -> list[dict[str, Any]]:
        wait_until(lambda: len(self.notices()) >= count, 60, f"notice {count}")
        return self.notices()

    def notices(self) -> list[dict[str, Any]]:
        return [row.data for row in self._events("notice")]

    def _events(self, kind: str) -> list[Any]:
        return [row for row in history_of(self.database, self.id) if row.type == kind]

    def checkpoint(self, step: int) -> Path:
        return self.workspace / "attempts" / "1" / "checkpoints" / str(step)

    def wait_for_request(self, path: str) -> None:
        wait_until(lambda: any(path in request.path for request in self.hub.requests), 60, path)

    @property
    def titles(self) -> list[str]:
        """The commits without the one that created the repository."""
        found = self.hub.find("model", "org/m")
        return [commit.title for commit in found.commits[1:]] if found else []

    @property
    def files(self) -> dict[str, bytes]:
        files = dict(self.hub.repo("org/m").commits[-1].files)
        del files[".gitattributes"]
        return files


Make = Callable[..., Training]


@pytest.fixture
def make(database: Database, settings: Settings, hub: HubDouble, processes: None) -> Make:
    return lambda **job: Training(database, settings, hub, **job)


def pushes() -> list[psutil.Process]:
    """Living pushes of this test process."""
    found = []
    for process in psutil.Process().children(recursive=True):
        try:
            if "worker.stages.publish.push" in process.cmdline():
                found.append(process)
        except psutil.NoSuchProcess:
            continue
    return found


def save_two(job: Training) -> None:
    for step in (1, 2):
        job.save(step)
        job.wait_for_notices(step)


class TestEverySave:
    def test_each_checkpoint_is_a_commit_while_training_continues(self, make: Make) -> None:
        training = make()

        def script(job: Training) -> None:
            for step in (1, 2):
                job.save(step)
                notice = job.wait_for_notices(step)[-1]
                assert notice["data"]["step"] == step
                assert notice["data"]["url"] == f"{job.hub.endpoint}/org/m"
                assert job.files == {
                    "config.json": b"{}",
                    "model.safetensors": stub_training.weights(step),
                }

        assert training.run(script) is JobState.QUEUED
        assert training.titles == [f"Training in progress, step {step}" for step in (1, 2)]
        assert training.hub.repo("org/m").private is True
        assert pushes() == []
        # Only the pushes have the token.
        seen = (training.workspace / "attempts/1/environment").read_text().split()
        assert "HF_TOKEN" not in seen
        # Whoever writes the request of a push decides where its token goes: not the training.
        assert (training.workspace / "push.json").is_file()
        assert not (training.workspace / "attempts/1/push.json").exists()
        for path in training.workspace.rglob("*"):
            assert path.is_dir() or TOKEN.encode() not in path.read_bytes(), path

    def test_while_one_is_pushed_the_newest_waits_and_the_middle_is_left_out(
        self, make: Make
    ) -> None:
        training = make()
        training.hub.fail(SLOW, method="PUT", delay=2.0, times=1)
        seen: list[tuple[int, str]] = []

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            job.save(2)
            job.save(3)
            (push,) = pushes()
            seen.append((push.nice(), push.environ()["CUDA_VISIBLE_DEVICES"]))
            job.wait_for_notices(2)

        training.run(script)
        assert training.titles == [f"Training in progress, step {step}" for step in (1, 3)]
        assert [notice["data"].get("left_out") for notice in training.notices()] == [None, [2]]
        assert seen == [(min(19, os.nice(0) + 15), "")], "it yields the CPU and holds no GPU"

    @pytest.mark.heavy
    def test_always_push_has_each_wait_for_its_turn(self, make: Make) -> None:
        training = make(target={"always_push": True}, training={"save_total_limit": 1})
        training.hub.fail(SLOW, method="PUT", delay=2.0, times=1)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            job.save(2)
            job.save(3)
            job.wait_for_notices(3)

        training.run(script)
        assert training.titles == [f"Training in progress, step {step}" for step in (1, 2, 3)]
        assert [notice["data"]["step"] for notice in training.notices()] == [1, 2, 3]

    def test_rotation_keeps_checkpoints_that_are_being_pushed(self, make: Make) -> None:
        training = make(training={"save_total_limit": 1}, strategy="checkpoint")
        training.hub.fail(SLOW, method="PUT", delay=2.0, times=1)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            job.save(2)
            assert job.checkpoint(1).exists()
            job.wait_for_notices(2)
            wait_until(lambda: not job.checkpoint(1).exists(), 10, "its end")

        training.run(script)
        first = training.hub.repo("org/m").commits[1].files
        assert first["last-checkpoint/optimizer.pt"] == b"state 1"
        assert training.titles == [f"Training in progress, step {step}" for step in (1, 2)]

    @pytest.mark.parametrize(
        "strategy", ["checkpoint", pytest.param("all_checkpoints", marks=pytest.mark.heavy)]
    )
    def test_checkpoints_go_along(self, make: Make, strategy: str) -> None:
        training = make(strategy=strategy)
        training.run(save_two)
        steps = {"last-checkpoint": 2} if strategy == "checkpoint" else None
        expected = {"config.json": b"{}", "model.safetensors": stub_training.weights(2)}
        for folder, step in (steps or {"checkpoint-1": 1, "checkpoint-2": 2}).items():
            for path in training.checkpoint(step).iterdir():
                expected[f"{folder}/{path.name}"] = path.read_bytes()
        assert training.files == expected


class TestFailure:
    def test_is_reported_and_affects_nothing(self, make: Make) -> None:
        training = make()
        training.hub.fail("/commit/", 500, times=1)
        assert training.run(save_two) is JobState.QUEUED
        first, second = training.notices()
        assert first["data"] == {"step": 1, "code": "hub_unavailable"}
        assert "could not be pushed to the Hub" in first["message"]
        assert second["data"]["step"] == 2
        assert training.titles == ["Training in progress, step 2"]

    @pytest.mark.parametrize("token", ["hf_unknown", pytest.param(None, marks=pytest.mark.heavy)])
    def test_a_permanent_failure_is_tried_once(
        self, make: Make, settings: Settings, monkeypatch: pytest.MonkeyPatch, token: str | None
    ) -> None:
        training = make()
        monkeypatch.setattr(
            training,
            "settings",
            settings.model_copy(update={"hub_token": Settings(hub_token=token).hub_token}),
        )

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_notices(1)
            job.save(2)

        assert training.run(script) is JobState.QUEUED
        (notice,) = training.notices()
        assert notice["data"] == {"step": 1, "code": "hub_unauthorized"}
        assert notice["message"].endswith("No further checkpoint is pushed in this attempt.")

    def test_a_push_that_dies(self, make: Make) -> None:
        training = make()
        training.hub.fail(SLOW, method="PUT", delay=1.0, times=1)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            pushes()[0].kill()
            job.wait_for_notices(1)

        assert training.run(script) is JobState.QUEUED
        assert training.notices()[0]["data"] == {"step": 1, "code": "worker_lost"}
        assert training.titles == []


class TestEnd:
    """No push outlives its attempt, and a stale one commits nothing."""

    def test_cancel(self, make: Make, database: Database) -> None:
        training = make()
        training.hub.fail(SLOW, method="PUT", delay=30, times=1)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            with database.write() as session:
                row = jobs.lock(session, EVERYTHING, job.id)
                assert row is not None
                user_actions.cancel(session, row)
            wait_until(lambda: not pushes(), 10, "the push's end")

        assert training.run(script) is JobState.CANCELLED
        assert training.titles == []

    def test_a_lost_claim(self, make: Make, database: Database) -> None:
        """Between the last check of the claim and the commit, the push asks the database itself."""
        training = make()
        training.hub.fail(SLOW, method="PUT", delay=1.0, times=1)
        never = {"poll_seconds": 60.0, "beat_seconds": 60.0, "kill_seconds": 120.0}
        training.settings = training.settings.model_copy(update=never)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            put(database, job.id, lease_until=db_now(-1))
            with database.write() as session:
                endings.expire(session, job.id, POLICY)
            wait_until(lambda: not pushes(), 10, "the push's end")

        assert training.run(script) is None
        assert training.titles == []

    @pytest.mark.heavy  # as a lost claim, above
    def test_the_database_is_unreachable(self, make: Make, flaky: Flaky) -> None:
        training = make()
        training.database = flaky
        training.hub.fail(SLOW, method="PUT", delay=1.0, times=1)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            flaky.is_unreachable = True
            wait_until(lambda: not pushes(), 10, "the push's end")
            flaky.is_unreachable = False
            assert job.wait_for_notices(1)[0]["data"]["code"] == "worker_lost"

        assert training.run(script) is JobState.QUEUED
        assert training.titles == []

    def test_whoever_committed_meanwhile_wins(self, make: Make) -> None:
        """What a later attempt would do between this one's check of the claim and its commit."""
        training = make()
        training.hub.fail(SLOW, method="PUT", delay=1.0, times=1)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            job.hub.repo("org/m").commit("main", "the later one", {".gitattributes": b""})
            job.wait_for_notices(1)

        assert training.run(script) is JobState.QUEUED
        assert training.notices()[0]["data"] == {"step": 1, "code": "hub_conflict"}
        assert training.titles == ["the later one"]

    def at_its_end(self, make: Make, **target: Any) -> Training:
        """A training that has ended while the first checkpoint was pushed and two waited."""
        training = make(target=target)
        training.hub.fail(SLOW, method="PUT", delay=2.0, times=1)

        def script(job: Training) -> None:
            job.save(1)
            job.wait_for_request("/lfs/")
            job.save(2)
            job.save(3)

        assert training.run(script) is JobState.QUEUED
        assert pushes() == []
        return training

    @pytest.mark.heavy
    def test_the_running_one_is_given_a_little_time_and_no_other_begins(self, make: Make) -> None:
        training = self.at_its_end(make)
        assert training.titles == ["Training in progress, step 1"]
        pushed, left = (notice["data"] for notice in training.notices())
        assert (pushed["step"], left) == (1, {"not_pushed": [2, 3]})

    @pytest.mark.parametrize(
        ("always_push", "then"),
        [
            (False, "The finished model is"),
            pytest.param(True, "Those that are kept are", marks=pytest.mark.heavy),
        ],
    )
    def test_steps_that_are_not_pushed_then_are_named(
        self, make: Make, monkeypatch: pytest.MonkeyPatch, always_push: bool, then: str
    ) -> None:
        monkeypatch.setattr(supervisor, "LAST_PUSH_SECONDS", 0.2)
        training = self.at_its_end(make, always_push=always_push)
        (notice,) = training.notices()
        assert sorted(notice["data"]["not_pushed"]) == [1, 2, 3]
        assert f"{then} pushed now" in notice["message"]
        # What `publish` is given then; the finished model is another one.
        claim = claim_job(training.database, training.id)
        request = stage_request.build(training.database, training.settings, NullTracker(), claim)
        assert [folder.name for folder in request.left_over] == (
            ["1", "2", "3"] if always_push else ["3"]
        )
        assert training.titles == []
