"""async_saver: a checkpoint is that of its step, whatever is done meanwhile."""

import errno
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.testing._internal.two_tensor import TwoTensor

from service.contract.failures import FailureCode
from service.contract.stage.events import CheckpointSaved, Metric, Notice, PhaseChanged, StageEvent
from service.contract.states import Phase
from tests.training.support.jobs import ROLLBACK as ROLLBACK
from tests.training.support.jobs import Job, Recorder, TinyObjective, fails_with, rollbacks, run
from worker.devices import memory
from worker.stages.base import Stopped
from worker.storage import atomic_dir
from worker.training.checkpointing import async_saver, weights
from worker.training.checkpointing import state as checkpoint
from worker.training.checkpointing.host_buffers import HostBuffers
from worker.training.distributed.ddp import DDPStrategy
from worker.training.distributed.ranks import Ranks


def folders(job: Job) -> dict[str, Path]:
    return {path.name: path for path in (job.workspace / "attempts/1/checkpoints").iterdir()}


def contents(folder: Path) -> dict[str, bytes]:
    """Without `progress.json`, which holds how long the training took."""
    return {p.name: p.read_bytes() for p in folder.iterdir() if p.suffix != ".json"}


def reports_step(step: int) -> Callable[[StageEvent], bool]:
    return lambda event: isinstance(event, Metric) and event.step == step


class Writes:
    """Looks into, and holds up, the writing of checkpoints."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.log: list[str] = []
        self.threads: list[str] = []
        self.daemons: set[str] = set()
        """Those that do not keep an ended process."""
        self.before: Callable[[int], None] = lambda step: None
        self._write, self._snapshot = checkpoint.write, checkpoint.snapshot
        monkeypatch.setattr(checkpoint, "write", self.write)
        monkeypatch.setattr(checkpoint, "snapshot", self.snapshot)

    def snapshot(self, state: Any) -> Any:
        self.log.append(f"snapshot {state.progress.step}")
        return self._snapshot(state)

    def write(self, taken: Any, folder: Path) -> None:
        thread = threading.current_thread()
        self.threads.append(thread.name)
        self.daemons |= {thread.name} if thread.daemon else set()
        self.before(int(folder.name))
        self._write(taken, folder)
        self.log.append(f"written {folder.name}")

    def hold_until(self, seen: Callable[[StageEvent], bool]) -> Recorder:
        """No byte is written before the training has sent such an event."""
        there = threading.Event()

        def listen(event: StageEvent) -> bool:
            if seen(event):
                there.set()
            return False

        self.before = lambda _step: _require(there.wait(60))
        return Recorder(kill_after=listen)

    def hold_until_waited_for(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """No byte is written before the training waits for the thread that writes."""
        waited_for = threading.Event()

        class Watched(threading.Thread):
            def join(self, timeout: float | None = None) -> None:
                waited_for.set()
                super().join(timeout)

        monkeypatch.setattr(async_saver, "Thread", Watched)
        self.before = lambda _step: _require(
            threading.current_thread() is threading.main_thread() or waited_for.wait(60)
        )


def _require(holds: bool) -> None:
    assert holds, "the training never came so far"


@pytest.fixture
def writes(monkeypatch: pytest.MonkeyPatch) -> Writes:
    return Writes(monkeypatch)


class TestSnapshot:
    @pytest.mark.parametrize("optim", ["adamw_torch_fused", "adafactor"])
    def test_no_later_step_reaches_it(
        self, make_job: Callable[..., Job], writes: Writes, optim: str
    ) -> None:
        """Two steps are made before its first byte is written; the bytes are those of a training
        that waited, the optimizer's and the random states', too."""
        options = {"max_steps": 6, "save_steps": 3, "optim": optim}
        waiting = make_job(**options, async_save=False)
        expected, _ = run(waiting.request())
        assert set(writes.threads) == {"MainThread"}
        job = make_job(**options)
        result, recorder = run(job.request(), writes.hold_until(reports_step(5)))
        assert recorder.checkpoint_steps() == [3, 6]
        assert writes.daemons == {"checkpoint"}
        for step in ("3", "6"):
            assert contents(folders(job)[step]) == contents(folders(waiting)[step])
            assert atomic_dir.verify(folders(job)[step])
        assert result.weights_sha256 == expected.weights_sha256

    def test_what_shares_memory_shares_it_and_the_next_copy_takes_the_same(self) -> None:
        table = torch.arange(12.0).reshape(3, 4)
        kept = {"tied": [table, table.t()], "step": torch.tensor(3.0), "rate": 0.1}
        buffers = HostBuffers()
        assert buffers.missing_bytes(kept) == 12 * 4 + 4
        first: Any = buffers.copied(kept)
        table += 1
        whole, turned = first["tied"]
        assert torch.equal(whole, torch.arange(12.0).reshape(3, 4))
        assert torch.equal(turned, whole.t())
        assert turned.stride() == (1, 4)
        assert turned.data_ptr() == whole.data_ptr() != table.data_ptr()
        assert (float(first["step"]), first["rate"]) == (3.0, 0.1)
        assert buffers.missing_bytes(kept) == 0
        second: Any = buffers.copied(kept)
        assert second["tied"][0].data_ptr() == whole.data_ptr()
        assert torch.equal(second["tied"][0], table)

    def test_pinned_memory_takes_the_next_power_of_two(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(
            "worker.training.checkpointing.host_buffers._is_to_pin", lambda _storage: True
        )
        kept = {"one": torch.zeros(33), "two": torch.zeros(16), "none": torch.zeros(0)}
        assert HostBuffers().missing_bytes(kept) == 256 + 64

    def test_a_tensor_of_tensors_is_copied_within(self) -> None:
        """As those of torchao's optimizers."""
        inner = torch.zeros(3), torch.ones(3)
        kept = [TwoTensor(*inner)]
        buffers = HostBuffers()
        assert buffers.missing_bytes(kept) == 24
        [copied] = buffers.copied(kept)
        for each in inner:
            each += 5
        assert isinstance(copied, TwoTensor)
        assert [copied.a.tolist(), copied.b.tolist()] == [[0.0] * 3, [1.0] * 3]


class TestOneAtATime:
    def test_the_second_waits_for_the_first(
        self, make_job: Callable[..., Job], writes: Writes
    ) -> None:
        """The first is not written before the training stands still for the second."""
        seen: list[StageEvent] = []

        def second(event: StageEvent) -> bool:
            seen.append(event)
            phases = [each.phase for each in seen if isinstance(each, PhaseChanged)]
            return phases.count(Phase.SAVING) == 2

        job = make_job(max_steps=3, save_steps=1)
        _, recorder = run(job.request(), writes.hold_until(second))
        steps = [f"{what} {step}" for step in (1, 2, 3) for what in ("snapshot", "written")]
        assert writes.log == steps
        assert recorder.checkpoint_steps() == [1, 2, 3]
        # After the last step nothing runs in parallel.
        assert writes.threads == ["checkpoint", "checkpoint", "MainThread"]

    def test_all_processes_wait_for_what_is_not_written_in_the_background(
        self, make_job: Callable[..., Job], writes: Writes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(Ranks, "barrier", lambda _ranks: writes.log.append("together"))
        run(make_job(max_steps=2, save_steps=1, async_save=False).request())
        steps = [(f"snapshot {step}", f"written {step}", "together") for step in (1, 2)]
        assert writes.log[:6] == [*steps[0], *steps[1]]

    def test_without_the_memory_for_a_copy_the_training_waits(
        self, make_job: Callable[..., Job], writes: Writes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "free_bytes", lambda: 1000)
        _, recorder = run(make_job(max_steps=3, save_steps=1).request())
        assert set(writes.threads) == {"MainThread"}
        assert recorder.checkpoint_steps() == [1, 2, 3]
        [notice] = [e for e in recorder.of(Notice) if "free memory" in e.message]
        assert notice.data["copy_bytes"] > 1000

    def test_a_strategy_that_copies_states_needs_no_memory_for_another(
        self, make_job: Callable[..., Job], writes: Writes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(memory, "free_bytes", lambda: 0)
        monkeypatch.setattr(DDPStrategy, "states_are_copies", True)
        _, recorder = run(make_job(max_steps=3, save_steps=1).request())
        assert writes.threads == ["checkpoint", "checkpoint", "MainThread"]
        assert [e for e in recorder.of(Notice) if "free memory" in e.message] == []


class TestEnds:
    def test_a_full_disk_ends_the_training(
        self, make_job: Callable[..., Job], writes: Writes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """At its next step, not at the next checkpoint."""
        original = weights.save

        def save(held: Any, file: Path, *, trained_only: bool) -> None:
            if file.parent.name == "4.tmp":
                raise OSError(errno.ENOSPC, "No space left on device")
            original(held, file, trained_only=trained_only)

        def after_the_thread(event: StageEvent) -> bool:
            if reports_step(5)(event):
                for thread in threading.enumerate():
                    if thread.name == "checkpoint":
                        thread.join()
            return False

        monkeypatch.setattr(weights, "save", save)
        job, recorder = make_job(max_steps=20, save_steps=4), Recorder(kill_after=after_the_thread)
        with fails_with(FailureCode.DISK_FULL, "checkpoint of step 4 was written"):
            run(job.request(), recorder)
        assert max(recorder.train_values("loss")) <= 5
        assert recorder.checkpoint_steps() == []
        assert folders(job) == {}

    def test_an_error_of_the_training_leaves_the_checkpoint_whole(
        self, make_job: Callable[..., Job], writes: Writes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes.hold_until_waited_for(monkeypatch)
        calls, original = iter(range(100)), TinyObjective.loss_sum

        def loss_sum(self: TinyObjective, model: Any, batch: Any) -> torch.Tensor:
            if next(calls) == 2:
                raise RuntimeError("shapes do not fit")
            return original(self, model, batch)

        monkeypatch.setattr(TinyObjective, "loss_sum", loss_sum)
        job, recorder = make_job(max_steps=4, save_steps=2), Recorder()
        with pytest.raises(RuntimeError, match="shapes do not fit"):
            run(job.request(), recorder)
        assert recorder.checkpoint_steps() == [2]
        assert atomic_dir.verify(folders(job)["2"])

    def test_a_stop_writes_both(
        self, make_job: Callable[..., Job], writes: Writes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """The one that is being written, and that of the step in hand."""
        writes.hold_until_waited_for(monkeypatch)
        job = make_job(max_steps=20, save_steps=2)
        recorder = Recorder(stop_after=reports_step(3))
        with pytest.raises(Stopped):
            run(job.request(), recorder)
        # Asked at the numbers of step 3: the step after it is the last.
        assert recorder.checkpoint_steps() == [2, 4]
        assert isinstance(recorder.events[-1], CheckpointSaved)
        assert all(atomic_dir.verify(path) for path in folders(job).values())

    def test_a_rollback_waits_for_what_it_goes_back_to(
        self, make_job: Callable[..., Job], writes: Writes, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        writes.hold_until_waited_for(monkeypatch)
        result, recorder = run(make_job(**ROLLBACK).request())
        assert [rollback["restored_step"] for rollback in rollbacks(recorder)] == [0]
        assert recorder.checkpoint_steps() == [0, 3, 6, 8]
        assert result.steps == 8


class TestFreeMemory:
    def test_a_container_may_have_less(self, tmp_path: Path) -> None:
        machine = memory.free_bytes(tmp_path)
        assert machine > 2**20
        (tmp_path / "memory.max").write_text("max\n")
        assert memory.free_bytes(tmp_path) > 2**20
        (tmp_path / "memory.max").write_text("1000\n")
        (tmp_path / "memory.current").write_text("800\n")
        (tmp_path / "memory.stat").write_text("anon 300\nfile 500\nshmem 100\n")
        assert memory.free_bytes(tmp_path) == 600
