"""A COMMIT whose answer never arrives: the real connection is cut at each important write."""

from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
from sqlalchemy import make_url
from sqlalchemy.exc import OperationalError

from chaos.faults.postgres_proxy import Cut, FirstCutter, PostgresProxy
from service.contract.stage.events import Notice
from service.contract.states import JobState
from service.errors import IdempotencyInFlightError, JobEndedError
from service.jobs import commands
from service.jobs.dispatch import Dispatcher
from service.jobs.submissions import Submitted
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import messages
from service.store.jobs.endings import Ending
from service.store.scope import EVERYTHING
from tests.support import factories, forked_stubs
from tests.support.factories import claim_job, make_job, make_spec
from tests.support.servers import services
from tests.support.store.databases import on_postgres
from tests.support.store.job_rows import checkpoint_saved, get, history_of
from worker.run import JobRunner
from worker.storage import atomic_dir
from worker.supervision.event_recorder import EventRecorder
from worker.supervision.heartbeat import Heartbeat
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker

pytestmark = on_postgres


@pytest.fixture(params=list(Cut))
def cut(request: pytest.FixtureRequest) -> Cut:
    kind: Cut = request.param
    return kind


class Wire:
    """To the database, through a proxy that cuts the first COMMIT with a given label."""

    def __init__(self, url: str, cut: Cut, parts: ExitStack) -> None:
        self._url = make_url(url)
        self._cut = cut
        self._parts = parts
        self.cutter = FirstCutter("", cut)

    def broken_at(self, label: str) -> Database:
        self.cutter = FirstCutter(label, self._cut)
        proxy = PostgresProxy(self._url.port or 5432, self.cutter)
        port = self._parts.enter_context(proxy).port
        reached = self._url.set(host="127.0.0.1", port=port)
        database = Database(reached.render_as_string(hide_password=False))
        self._parts.callback(database.dispose)
        return database


@pytest.fixture
def wire(database_url: str, cut: Cut) -> Iterator[Wire]:
    with ExitStack() as parts:
        wire = Wire(database_url, cut, parts)
        yield wire
    assert wire.cutter.done, "nothing was cut: the test shows nothing"


@pytest.fixture
def settings(database_url: str, tmp_path: Path) -> Settings:
    return Settings(
        home=tmp_path / "home",
        database_url=database_url,
        beat_seconds=0.3,
        poll_seconds=0.1,
    )


def types(database: Database, job_id: str) -> list[str]:
    return [row.type for row in history_of(database, job_id)]


def job_runner(database: Database, settings: Settings) -> JobRunner:
    tracker = NullTracker()
    supervisor = Supervisor(
        database, settings, tracker, command=forked_stubs.command, start=forked_stubs.start
    )
    return JobRunner(settings, database, tracker, supervisor, lambda _: True, gpus=())


class TestSubmit:
    def test_repeated_with_its_key_it_makes_one_job(
        self, database: Database, wire: Wire, settings: Settings
    ) -> None:
        broken, spec = wire.broken_at("submitted"), make_spec(name="once")
        dispatcher = Dispatcher(settings)

        def submit() -> Submitted:
            return factories.submit(broken, dispatcher, spec, idempotency_key="key")

        with pytest.raises(OperationalError):
            submit()
        made: list[Submitted] = []

        def answered() -> bool:
            try:
                made.append(submit())
            except IdempotencyInFlightError:  # the first COMMIT is still on its way
                return False
            return True

        services.wait_until(answered, 10, "an answer")
        assert types(database, made[0].job_id) == ["submitted"]
        with database.read() as session:
            assert len(messages.due(session, 10)) == 1


@pytest.mark.usefixtures("processes")
class TestClaim:
    def test_it_is_run_once_or_left_for_the_next(
        self, database: Database, wire: Wire, settings: Settings, cut: Cut
    ) -> None:
        job_id = make_job(database)
        job_runner(wire.broken_at("stage_started"), settings).wake(
            job_id, "worker-1", ["cpu", "gpu"]
        )
        row = get(database, job_id)
        if cut is Cut.BEFORE:
            assert (row.state, row.epoch, types(database, job_id)) == ("queued", 0, ["submitted"])
        else:
            assert (row.stage, row.epoch) == ("train", 1)
            assert types(database, job_id) == ["submitted", "stage_started", "stage_finished"]


class TestRecorder:
    def test_events_and_checkpoints_are_registered_once(
        self, database: Database, wire: Wire, settings: Settings
    ) -> None:
        job_id = make_job(database, training={"save_total_limit": 1})
        claimed = claim_job(database, job_id)
        workspace = settings.workspace(job_id)
        broken = wire.broken_at("checkpoint")
        with EventRecorder(broken, claimed, workspace, interval=0.01) as recorder:
            saved = [checkpoint_saved(step) for step in (1, 2)]
            for checkpoint in saved:
                (workspace / checkpoint.path).mkdir(parents=True)
                (workspace / checkpoint.path / atomic_dir.MANIFEST).touch()
            for event in (saved[0], Notice(message="x"), saved[1]):
                recorder.add(event)
            assert recorder.drain(lambda: False)
        recorded = [t for t in types(database, job_id) if t not in ("submitted", "stage_started")]
        assert recorded == ["checkpoint", "notice", "checkpoint", "checkpoint_pruned"]


class TestBeat:
    def test_the_claim_stays_ours(self, database: Database, wire: Wire, settings: Settings) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id, lease_seconds=5)
        before = get(database, job_id).lease_until
        assert before is not None

        def prolonged() -> bool:
            now = get(database, job_id).lease_until
            return wire.cutter.done and now is not None and now > before

        with Heartbeat(wire.broken_at("beat"), settings, claimed) as heartbeat:
            services.wait_until(prolonged, 10, "a beat after the cut")
            assert not heartbeat.is_stale


@pytest.mark.usefixtures("processes")
class TestEnd:
    def test_it_is_written_once_and_known(
        self, database: Database, wire: Wire, settings: Settings
    ) -> None:
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        broken = wire.broken_at("stage_finished")
        supervisor = Supervisor(
            broken, settings, NullTracker(), command=forked_stubs.command, start=forked_stubs.start
        )
        assert supervisor.supervise(claimed) is JobState.QUEUED
        assert types(database, job_id) == ["submitted", "stage_started", "stage_finished"]


class TestCancel:
    @pytest.mark.parametrize("held", [True, False])
    def test_asked_again_it_is_cancelled_once(
        self, database: Database, wire: Wire, settings: Settings, held: bool
    ) -> None:
        job_id = make_job(database)
        if held:
            claim_job(database, job_id)
        broken = wire.broken_at("cancel_requested" if held else "cancelled")
        dispatcher = Dispatcher(settings)
        with pytest.raises(OperationalError):
            commands.cancel(broken, dispatcher, EVERYTHING, job_id)
        try:
            state = commands.cancel(broken, dispatcher, EVERYTHING, job_id)
        except JobEndedError:
            state = JobState(get(database, job_id).state)
        assert state == ("cancelling" if held else "cancelled")
        assert types(database, job_id).count("cancel_requested" if held else "cancelled") == 1


@pytest.mark.usefixtures("processes")
def test_the_released_ending_is_settled(database: Database, wire: Wire, settings: Settings) -> None:
    """A worker that stops while the answer to its COMMIT is lost leaves one `released`."""
    job_id = make_job(database)
    claimed = claim_job(database, job_id)
    broken = wire.broken_at("released")
    supervisor = Supervisor(
        broken, settings, NullTracker(), command=forked_stubs.command, start=forked_stubs.start
    )
    state = supervisor._end(claimed, Ending.released(), lambda: False)
    assert state is JobState.QUEUED
    assert types(database, job_id) == ["submitted", "stage_started", "released"]
