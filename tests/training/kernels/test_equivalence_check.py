"""equivalence_check: a fast path is compared with the plain one, and its verdict kept."""

import os
from pathlib import Path
from typing import Any

import pytest
import torch

from service.contract.stage.events import Notice
from tests.training.support.jobs import Recorder
from worker.storage import verdicts
from worker.training.distributed.ranks import Ranks
from worker.training.kernels.equivalence_check import EquivalenceChecker, Numbers, Verdict, compare

CPU = torch.device("cpu")
EXACT = torch.linspace(1, 2, 100)
SAME, OTHER = Verdict(0.1, 0.2), Verdict(0.3, 0.2)


def numbers(output: torch.Tensor, *gradients: torch.Tensor) -> Numbers:
    return Numbers([output], gradients)


class TestCompared:
    def test_allows_three_times_the_plain_paths_rounding(self) -> None:
        exact, plain = numbers(EXACT), numbers(EXACT * 1.01)
        close = compare(exact, plain, numbers(EXACT * 0.972), torch.float32)
        assert close.same
        assert (close.difference, close.allowed) == pytest.approx((0.028, 0.0301), rel=1e-3)
        far = compare(exact, plain, numbers(EXACT * 0.968), torch.float32)
        assert not far.same
        assert str(far) == "differs: relative difference 0.032, allowed 0.03"

    @pytest.mark.parametrize(
        ("dtype", "floor"),
        [(torch.float32, 1e-4), (torch.float16, 2e-3), (torch.bfloat16, 1.6e-2)],
    )
    def test_has_a_floor_by_precision(self, dtype: torch.dtype, floor: float) -> None:
        exact = numbers(EXACT)
        assert compare(exact, exact, numbers(EXACT * (1 + 0.9 * floor)), dtype).same
        assert not compare(exact, exact, numbers(EXACT * (1 + 1.1 * floor)), dtype).same

    def test_says_the_worst_of_outputs_and_gradients(self) -> None:
        exact = numbers(EXACT, 1000 * EXACT, EXACT)
        fast = numbers(EXACT * 1.001, 1000 * EXACT, EXACT * 1.002)
        verdict = compare(exact, exact, fast, torch.float32)
        # The second gradient is small: it is compared by a hundredth of the first one's size.
        assert verdict.difference == pytest.approx(0.001, rel=1e-2)

    def test_the_outputs_size_is_their_own(self) -> None:
        exact = numbers(EXACT, 1e6 * EXACT)
        fast = numbers(EXACT * 1.5, 1e6 * EXACT)
        assert compare(exact, exact, fast, torch.float32).difference == pytest.approx(0.5)

    @pytest.mark.parametrize("bad", [float("nan"), float("inf")])
    def test_what_is_not_finite_differs(self, bad: float) -> None:
        exact = numbers(EXACT)
        assert not compare(exact, exact, numbers(EXACT * bad), torch.float32).same

    def test_other_shapes_and_numbers_where_none_should_be(self) -> None:
        exact = numbers(EXACT)
        other = compare(exact, exact, numbers(EXACT[1:]), torch.float32)
        assert (other.same, other.error) == (False, "its numbers have other shapes")
        nothing = numbers(torch.zeros(3))
        assert compare(nothing, nothing, nothing, torch.float32).same
        assert not compare(nothing, nothing, numbers(torch.ones(3)), torch.float32).same


class TestVerdicts:
    @pytest.fixture
    def recorder(self) -> Recorder:
        return Recorder()

    @pytest.fixture
    def frame(self, tmp_path: Path, recorder: Recorder) -> EquivalenceChecker:
        return EquivalenceChecker(tmp_path / "equivalence", CPU, Ranks(), recorder.send)

    def test_are_kept_for_later_jobs_of_the_kind(
        self, frame: EquivalenceChecker, recorder: Recorder
    ) -> None:
        verdict = Verdict(0.1, 0.2, found={"first": 2})
        measured = iter([verdict, OTHER])
        for _ in range(2):
            assert frame.check("fast", {"a": 1}, lambda: next(measured), "") == verdict
        assert frame.check("fast", {"a": 2}, lambda: next(measured), "Padded.") is None
        assert frame.check("fast", {"a": 2}, lambda: next(measured), "Padded.") is None
        assert [each.message for each in recorder.of(Notice)] == [
            "The fast path `fast` is not used: it differs: relative difference 0.3, allowed 0.2. "
            "Padded."
        ] * 2
        assert recorder.of(Notice)[0].data["difference"] == 0.3

    def test_of_failures_are_not(self, frame: EquivalenceChecker, recorder: Recorder) -> None:
        def fails() -> Verdict:
            raise NotImplementedError("no Triton\n")

        assert frame.check("fast", {}, fails, "") is None
        assert recorder.of(Notice)[0].data["error"] == "NotImplementedError: no Triton"
        assert frame.check("fast", {}, lambda: SAME, "") == SAME

    def test_depend_on_determinism(self, frame: EquivalenceChecker) -> None:
        frame.check("fast", {}, lambda: SAME, "")
        torch.use_deterministic_algorithms(True)
        try:
            assert frame.check("fast", {}, lambda: OTHER, "") is None
        finally:
            torch.use_deterministic_algorithms(False)

    def test_one_process_that_differs_is_enough(self, tmp_path: Path, recorder: Recorder) -> None:
        class First(Ranks):
            def all_gather(self, value: Any) -> list[Any]:
                return [value, OTHER]

        frame = EquivalenceChecker(tmp_path, CPU, First(world_size=2), recorder.send)
        assert frame.check("fast", {}, lambda: SAME, "") is None

    def test_are_bounded(self, frame: EquivalenceChecker, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(verdicts, "_KEPT", 2)
        for kind in range(4):
            frame.check("fast", {"kind": kind}, lambda: SAME, "")
            for age, file in enumerate(sorted(frame.folder.iterdir(), key=os.path.getmtime)):
                os.utime(file, (age, age))
        assert len(list(frame.folder.iterdir())) == 2
        measured: list[int] = []

        def again() -> Verdict:
            measured.append(1)
            return SAME

        frame.check("fast", {"kind": 3}, again, "")
        assert measured == []
        frame.check("fast", {"kind": 0}, again, "")
        assert measured == [1]

    def test_without_room_on_the_disk(
        self, frame: EquivalenceChecker, capsys: pytest.CaptureFixture[str]
    ) -> None:
        frame.folder.parent.mkdir(exist_ok=True)
        frame.folder.write_text("a file in its place")
        assert frame.check("fast", {}, lambda: SAME, "") == SAME
        assert "Cannot save the verdict for later jobs" in capsys.readouterr().err

    def test_draw_no_number_of_the_trainings(self, frame: EquivalenceChecker) -> None:
        before = torch.get_rng_state()
        frame.check("fast", {}, lambda: Verdict(float(torch.rand(())) * 0), "")
        assert torch.equal(torch.get_rng_state(), before)
