from collections import Counter

from service.contract.stage.events import Metric, Notice, PhaseChanged, Progress, StageEvent
from service.contract.states import Phase
from service.settings import Settings
from service.store.database import Database
from tests.support.factories import claim_job, make_job
from tests.support.servers import services
from tests.support.store.job_rows import checkpoint_saved, get, history_of
from worker.supervision.event_recorder import EventRecorder, compact


def progress(step: int) -> Progress:
    return Progress(step=step, of=9)


class TestCompact:
    def test_only_the_last_progress_of_a_phase_stays(self) -> None:
        loading, training = PhaseChanged(phase=Phase.LOADING), PhaseChanged(phase=Phase.TRAINING)
        metric, notice = Metric(kind="train", step=1, values={}), Notice(message="x")
        events: list[StageEvent] = [
            loading,
            progress(1),
            progress(2),
            training,
            progress(1),
            metric,
            progress(2),
            notice,
        ]
        assert compact(events) == [loading, progress(2), training, metric, progress(2), notice]


class TestRecorder:
    def test_an_event_that_cannot_be_recorded_is_a_fault(
        self, database: Database, settings: Settings
    ) -> None:
        """No database will ever accept this event, so waiting is useless."""
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        with EventRecorder(
            database, claimed, settings.workspace(job_id), interval=0.01
        ) as recorder:
            recorder.add(Metric(kind="train", step=2**70, values={"loss": 1.0}))
            services.wait_until(lambda: recorder.fault, 10, "the fault")
            assert not recorder.drain(lambda: False)
        assert get(database, job_id).metric_seq == 0

    def test_no_transaction_is_long(self, database: Database, settings: Settings) -> None:
        """A heartbeat that waits for it loses the claim. What one writes has one time."""
        job_id = make_job(database)
        claimed = claim_job(database, job_id)
        messages = [str(number) for number in range(1201)]
        with EventRecorder(
            database, claimed, settings.workspace(job_id), interval=0.01
        ) as recorder:
            for message in messages:
                recorder.add(Notice(message=message))
            assert recorder.drain(lambda: False)
        notices = [event for event in history_of(database, job_id) if event.type == "notice"]
        assert [event.data["message"] for event in notices] == messages
        assert max(Counter(event.at for event in notices).values()) <= 500

    def test_a_checkpoint_outside_the_workspace_is_never_removed(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job(database, training={"save_total_limit": 1})
        claimed = claim_job(database, job_id)
        workspace = settings.workspace(job_id)
        workspace.mkdir(parents=True)
        outside = settings.home / "precious"
        outside.mkdir()
        with EventRecorder(database, claimed, workspace, interval=0.01) as recorder:
            recorder.add(checkpoint_saved(1).model_copy(update={"path": "../../precious"}))
            recorder.add(checkpoint_saved(2))
            assert recorder.drain(lambda: False)
        assert outside.is_dir()
