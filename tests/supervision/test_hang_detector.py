import os

import pytest

from service.contract.stage.events import Notice, PhaseChanged, Progress
from service.contract.states import Phase
from worker.supervision.hang_detector import HangDetector, cpu_seconds


class Stage:
    """A stage with a simulated clock and processor time."""

    def __init__(self, hung_seconds: float = 100) -> None:
        self.now = 0.0
        self.cpu = 0.0
        self.detector = HangDetector(hung_seconds, lambda: self.cpu, self.now)

    def record(self, event: Notice | PhaseChanged | Progress, after: float = 0.0) -> None:
        self.now += after
        self.detector.record(event, self.now)

    def steps(self, *seconds: float, first: int = 1) -> None:
        for step, taken in enumerate(seconds, start=first):
            self.record(Progress(step=step, of=1000), after=taken)

    def hangs_after(self, *, cpu_share: float = 0.0, limit: int = 100_000) -> int | None:
        """Seconds until it counts as hung, if it uses this share of a CPU."""
        begun = self.now
        while self.now - begun < limit:
            self.now += 1
            self.cpu += cpu_share
            if self.detector.hang_message(self.now) is not None:
                return round(self.now - begun)
        return None


TRAINING = PhaseChanged(phase=Phase.TRAINING)


class TestTraining:
    def test_a_busy_loop_without_steps_is_hung(self) -> None:
        stage = Stage()
        stage.record(TRAINING)
        stage.steps(0, 1, 1, 1)
        assert stage.hangs_after(cpu_share=1.0) == 101
        assert stage.detector.hang_message(stage.now) == (
            "No optimizer step for 101 s after step 4; one takes 1 s at the median."
        )

    def test_slow_steps_may_take_twenty_medians(self) -> None:
        stage = Stage()
        stage.record(TRAINING)
        stage.steps(0, 30, 30, 90, 30)
        assert stage.hangs_after(cpu_share=1.0) == 601

    def test_progress_within_a_step_is_none(self) -> None:
        stage = Stage()
        stage.record(TRAINING)
        stage.steps(0, 1, 1)
        stage.record(Progress(step=3, of=9), after=90)
        assert stage.hangs_after(cpu_share=1.0) == 11

    def test_several_steps_between_two_events_are_several(self) -> None:
        stage = Stage(hung_seconds=1)
        stage.record(TRAINING)
        for step in (1, 11, 21):
            stage.record(Progress(step=step, of=99), after=10)
        assert stage.hangs_after(cpu_share=1.0) == 21

    def test_an_evaluations_time_does_not_count_as_a_steps(self) -> None:
        stage = Stage()
        stage.record(TRAINING)
        stage.steps(0, 1, 1)
        stage.record(PhaseChanged(phase=Phase.EVALUATING))
        stage.record(TRAINING, after=5000)
        stage.steps(0, 1, first=4)
        assert stage.hangs_after(cpu_share=1.0) == 101

    def test_the_first_step_may_take_long_while_something_happens(self) -> None:
        """The first step may be compiling."""
        stage = Stage()
        stage.record(TRAINING)
        stage.record(Progress(step=0, of=9), after=1)
        assert stage.hangs_after(cpu_share=0.5) is None
        assert stage.hangs_after() in range(100, 112)


class TestOtherPhases:
    @pytest.mark.parametrize("phase", [None, Phase.DOWNLOADING, Phase.EVALUATING, Phase.PUSHING])
    def test_neither_words_nor_work(self, phase: Phase | None) -> None:
        stage = Stage()
        if phase is not None:
            stage.record(PhaseChanged(phase=phase))
        assert stage.hangs_after(cpu_share=0.0005) in range(100, 112)
        message = stage.detector.hang_message(stage.now)
        assert message is not None
        assert message.startswith("The stage has done nothing for 1")
        assert (phase is None) or f"`{phase}`" in message

    def test_work_without_events_continues(self) -> None:
        stage = Stage()
        stage.record(PhaseChanged(phase=Phase.TOKENIZING))
        assert stage.hangs_after(cpu_share=0.01) is None

    def test_words_without_work_go_on(self) -> None:
        stage = Stage()
        for _ in range(20):
            stage.record(Notice(message="still here"), after=90)
            assert stage.detector.hang_message(stage.now) is None


def test_processor_time_is_that_of_the_process_tree() -> None:
    before = cpu_seconds(os.getpid())
    sum(number * number for number in range(2_000_000))
    assert before < cpu_seconds(os.getpid()) < before + 10
    assert cpu_seconds(2**22 + 1) == 0.0
