"""What a stage may report in its whole life."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

import pytest

from service.contract.failures import Failure, FailureCode
from service.contract.stage.events import (
    ArtifactWritten,
    CheckpointSaved,
    Failed,
    Finished,
    Metric,
    Notice,
    PhaseChanged,
    Progress,
    ReadyToCommit,
    ReferenceSaved,
    StageEvent,
)
from service.contract.stage.stages import StageRequest
from service.contract.states import Phase, Stage
from tests.stages.support import REQUEST
from worker.supervision import stage_reports
from worker.supervision.event_recorder import EventRecorder
from worker.supervision.stage_reports import StageReports

HASH = "0" * 64
LOSS = {"loss": 1.0}
NUMBERS = {f"a_number_of_a_training_{i}": 0.5 for i in range(10)}


class Recorder:
    def __init__(self) -> None:
        self.events: list[StageEvent] = []
        self.refusal: StageEvent | None = None

    def add(self, event: StageEvent) -> None:
        self.events.append(event)


@pytest.fixture
def recorder() -> Recorder:
    return Recorder()


@pytest.fixture
def reports(recorder: Recorder, tmp_path: Path) -> StageReports:
    given = {**REQUEST, "stage": Stage.PUBLISH, "workspace": tmp_path}
    return StageReports(StageRequest.model_validate(given), cast(EventRecorder, recorder))


def metric(values: Mapping[str, float] = LOSS, step: int = 1) -> Metric:
    return Metric(kind="train", step=step, values=dict(values))


def checkpoint(**changed: Any) -> CheckpointSaved:
    made = CheckpointSaved(step=1, path="attempts/1/c", bytes=1, manifest_sha256=HASH)
    return made.model_copy(update=changed)


def artifact(**changed: Any) -> ArtifactWritten:
    made = ArtifactWritten(name="a", path="attempts/1/a", bytes=1, sha256=HASH)
    return made.model_copy(update=changed)


class TestHowMuch:
    def test_a_million_steps_that_are_all_logged_evaluated_and_saved(
        self, reports: StageReports, recorder: Recorder
    ) -> None:
        step: list[StageEvent] = [
            metric(NUMBERS),
            PhaseChanged(phase=Phase.EVALUATING),
            metric(NUMBERS),
            PhaseChanged(phase=Phase.TRAINING),
            checkpoint(),
        ]
        for _ in range(100_000):
            reports.take(step)
        used = (reports._events, reports._bytes, reports._files)
        most = (stage_reports.MOST_EVENTS, stage_reports.MOST_BYTES, stage_reports.MOST_FILES)
        assert all(one * 10 <= limit for one, limit in zip(used, most, strict=True))
        assert len(recorder.events) == 500_000
        assert reports.refusal is None

    @pytest.mark.parametrize(
        ("name", "event"),
        [
            ("MOST_EVENTS", metric()),
            ("MOST_EVENTS", PhaseChanged(phase=Phase.TRAINING)),
            ("MOST_BYTES", Notice(message="x" * 900)),
            ("MOST_BYTES", Notice(message="", data={"x": "x" * 900})),
            ("MOST_BYTES", metric({"n" * 900: 1.0})),
        ],
    )
    def test_what_is_too_much_is_dropped_with_one_notice(
        self,
        reports: StageReports,
        recorder: Recorder,
        monkeypatch: pytest.MonkeyPatch,
        name: str,
        event: StageEvent,
    ) -> None:
        monkeypatch.setattr(stage_reports, name, 3 if name == "MOST_EVENTS" else 3_500)
        for _ in range(50):
            reports.take([event])
        assert recorder.events[:3] == [event] * 3
        [notice] = recorder.events[3:]
        assert isinstance(notice, Notice)
        assert "More of them are not kept" in notice.message
        assert notice.data["events"] == 4
        reports.take([checkpoint(), artifact(), Progress(step=1, of=2)])
        assert recorder.events[4:] == [checkpoint(), artifact(), Progress(step=1, of=2)]
        assert reports.refusal is None

    def test_ever_new_names_of_metrics(
        self, reports: StageReports, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """All of them would be in the job's row."""
        monkeypatch.setattr(stage_reports, "MOST_NAMES", 35)
        for number in range(100):
            reports.take([metric({f"loss_{number:05}": 1.0}), metric({"loss_00000": 1.0})])
        assert [e.values for e in recorder.events if isinstance(e, Metric)] == [
            *({"loss_00000": 1.0}, {"loss_00000": 1.0}),
            *({"loss_00001": 1.0}, {"loss_00000": 1.0}),
            *({"loss_00002": 1.0}, {"loss_00000": 1.0}),
        ]

    def test_ever_more_files(
        self, reports: StageReports, recorder: Recorder, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(stage_reports, "MOST_FILES", 5)
        reports.take([checkpoint(), artifact()] * 5)
        assert len(recorder.events) == 5
        assert _code(reports) is FailureCode.STAGE_UNTRUSTWORTHY

    def test_a_long_message_is_cut(self, reports: StageReports, recorder: Recorder) -> None:
        reports.take([Notice(message="x" * 20_000, data={"a": 1})])
        assert recorder.events == [Notice(message=f"{'x' * 10_000}…", data={"a": 1})]


class TestWhat:
    @pytest.mark.parametrize(
        "event",
        [
            metric(step=2**31),
            Progress(step=2**31, of=1),
            ReferenceSaved(features=2**31),
            checkpoint(step=2**31),
            checkpoint(step=-1),
            checkpoint(bytes=2**63),
            checkpoint(bytes=-1),
            checkpoint(manifest_sha256="z" * 64),
            checkpoint(manifest_sha256="0" * 65),
            checkpoint(path="x" * 1_001),
            artifact(name="x" * 501),
            artifact(path="x" * 1_001),
            artifact(bytes=2**63),
            artifact(sha256=""),
            ReadyToCommit(),
        ],
    )
    def test_what_no_stage_of_ours_sends_ends_it(
        self, reports: StageReports, recorder: Recorder, event: StageEvent
    ) -> None:
        """The database would refuse it, and the job end as `internal`."""
        reports.take([event, metric(), Finished(result={})])
        assert reports.refusal == event
        assert recorder.events == [metric()]
        assert _code(reports) is FailureCode.STAGE_UNTRUSTWORTHY

    def test_the_largest_that_is_possible(self, reports: StageReports, recorder: Recorder) -> None:
        events: list[StageEvent] = [
            metric({"loss": float("inf")}, 2**31 - 1),
            checkpoint(step=2**31 - 1, bytes=2**63 - 1),
            artifact(name="x" * 500),
        ]
        reports.take(events)
        assert recorder.events == events
        assert reports.refusal is None

    def test_how_it_failed_is_cut(self, reports: StageReports) -> None:
        failure = Failure.from_code(
            FailureCode.INTERNAL, "x" * 9_000, action="y" * 9_000, a="z" * 70_000
        )
        reports.take([Failed(failure=failure)])
        outcome = reports.outcome()
        assert isinstance(outcome, Failed)
        assert outcome.failure.message == "x" * 4_000
        assert outcome.failure.action == "y" * 4_000
        assert outcome.failure.details == {}


def _code(reports: StageReports) -> FailureCode:
    outcome = reports.outcome()
    assert isinstance(outcome, Failed)
    return outcome.failure.code
