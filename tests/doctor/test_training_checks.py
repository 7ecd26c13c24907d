"""The training checks on real stages: on this CPU as it is, and with a fault in what they check.

All of them run on a healthy machine in CI's `finetune doctor`.
"""

from pathlib import Path
from threading import current_thread
from typing import Any

import pytest

from tests.doctor.endings import cpu
from worker.doctor import tiny
from worker.doctor.checks import checkpoints, job_metrics, out_of_memory, overflow, tasks
from worker.doctor.jobs import Jobs, StageFailedError
from worker.training import auto_batch_size, rng
from worker.training.checkpointing import state


class TestHealthy:
    def test_an_overflow(self, tmp_path: Path) -> None:
        found = overflow.overflow(cpu(tmp_path))
        assert found.status == "ok", found

    def test_the_job_s_metrics(self, tmp_path: Path) -> None:
        found = job_metrics.job_metrics(cpu(tmp_path))
        assert found.status == "ok", found
        assert set(found.data) == {"cpu_percent", "disk_free_bytes", "memory_rss_bytes"}

    def test_a_task(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(tiny, "TASKS", ("token-classification",))
        found = tasks.tasks(cpu(tmp_path))
        assert found.status == "ok", found
        losses: Any = found.data["losses"]
        first, last = losses["token-classification"]
        assert last < first / 1.5


class TestFaults:
    def test_a_checkpoint_that_is_spoiled_in_the_background(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        plain = state.write

        def write(taken: Any, folder: Path) -> None:
            plain(taken, folder)
            if current_thread().name == "checkpoint":
                file = folder / "optimizer.pt"
                content = bytearray(file.read_bytes())
                content[len(content) // 2] ^= 1
                file.write_bytes(content)

        monkeypatch.setattr(state, "write", write)
        found = checkpoints.background(cpu(tmp_path))
        assert found.status == "failed"
        # The last one is written when the steps are made, with nothing to do meanwhile.
        assert found.reason == "different content: 2/optimizer.pt, 4/optimizer.pt"

    def test_a_resume_that_draws_other_numbers(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(rng, "restore", lambda *_, **__: None)
        found = checkpoints.resumed(cpu(tmp_path))
        assert found.summary == "a resumed training ends with different weights"

    def test_batches_that_are_halved_without_their_rest(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(auto_batch_size, "_largest_part", lambda size: 1)
        found = out_of_memory.training(cpu(tmp_path))
        assert found.summary == "halved batches do not train like small ones"

    def test_data_that_cannot_be_prepared(self, tmp_path: Path) -> None:
        jobs = Jobs.of(cpu(tmp_path))
        body = jobs.body("text-classification", max_seq_length=4096)
        with pytest.raises(StageFailedError, match="could not be prepared: the stage ended with"):
            jobs.train(body)
