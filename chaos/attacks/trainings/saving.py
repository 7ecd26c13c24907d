"""Attacks on the checkpoint while it is written: SIGKILL, a full disk, and damage afterwards."""

import json
import os
import random
import shutil
import signal
import time
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chaos.attacks.trainings.nursery import DONE, ENDED, FAILED, SAVED, SAVING, nursery
from chaos.faults.small_disk import free_again, small_disk
from chaos.rows import Report, Row, Scale, timed
from service.contract.failures import FailureCode
from tests.training.support.jobs import Job
from worker.storage import atomic_dir

_TRAINING: dict[str, Any] = {
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 4,
    "save_steps": 1,
}


def killed_saves(seed: int, scale: Scale) -> Row:
    """SIGKILL during a save; each restart resumes from the newest checkpoint on disk."""
    kills = scale.pick(short=6, full=200)
    holds = "each restart loads a checkpoint that verifies; the weights are the undisturbed run's"
    with timed("SIGKILL during a save", holds) as report, TemporaryDirectory() as folder:
        home = Path(folder)
        # Each process is killed in its fifth save at the latest.
        job = _job(home / "killed", max_steps=kills * 5 + 5)
        restarts = _Restarts(job, random.Random(seed), report)
        restarts.kill_in_saves(kills)
        weights = restarts.finish()
        undisturbed = _undisturbed(_job(home / "whole", **job.training))
    report.done = (
        f"{restarts.kills} SIGKILLs, {restarts.inside} of them while a save was being made"
    )
    report.outcome = (
        f"{restarts.attempt} lives, {restarts.verified} checkpoints verified, the weights equal "
        f"after {job.training['max_steps']} steps"
    )
    if weights != undisturbed["sha256"]:
        report.faults.append(f"weights {weights} are not those of the undisturbed run")
    if restarts.inside < kills // 2:
        report.faults.append(
            f"only {restarts.inside} kills fell into a save, which tests too little"
        )
    return report.row()


@dataclass
class _Restarts:
    job: Job
    random: random.Random
    report: Report
    attempt: int = 0
    kills: int = 0
    inside: int = 0
    verified: int = 0

    def kill_in_saves(self, kills: int) -> None:
        """Start processes, and kill each at a random moment of one of its first saves."""
        while self.kills < kills and not self.report.faults:
            pid = self._start()
            seconds = self._wait_for_save(self.random.randint(1, 4))
            if seconds is None:
                return
            time.sleep(self.random.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            self.inside += SAVED not in [kind for kind, _ in nursery().messages()]
            self._verify()

    def _wait_for_save(self, count: int) -> float | None:
        """Seconds of the last full save, when the next one starts; None if the process ended."""
        begun = seconds = 0.0
        while count >= 0:
            kind, _ = nursery().message()
            if kind in (DONE, FAILED, ENDED):
                self.report.faults.append(f"process {self.attempt} ended by itself: {kind}")
                return None
            if kind == SAVED:
                seconds = time.monotonic() - begun
            elif kind == SAVING:
                begun, count = time.monotonic(), count - 1
        return seconds

    def finish(self) -> str:
        """Train to the end, undisturbed; the weights' sha256."""
        self._start()
        return str(_done()["sha256"])

    def _start(self) -> int:
        newest = self._newest()
        self.attempt += 1
        return nursery().start(self.job.request(self.attempt, newest))

    def _verify(self) -> None:
        """Each folder with a checkpoint's name must verify. Then prune, as the supervisor does."""
        found = list(_folders(self.job))
        for path in found:
            self.verified += 1
            if not atomic_dir.verify(path):
                self.report.faults.append(f"{path} is there and does not verify")
        for path in found[:-2]:
            atomic_dir.remove(path)

    def _newest(self) -> Path | None:
        return next(reversed(list(_folders(self.job))), None)


def _folders(job: Job) -> Iterator[Path]:
    """Checkpoints by name, the oldest first; of one step, those of earlier attempts first."""
    found = job.workspace.glob("attempts/*/checkpoints/*")
    whole = [path for path in found if path.name.isdigit()]
    yield from sorted(whole, key=lambda path: (int(path.name), int(path.parent.parent.name)))


def _job(home: Path, **training: Any) -> Job:
    home.mkdir()
    return Job(home, {**_TRAINING, **training})


def _undisturbed(job: Job) -> dict[str, Any]:
    nursery().start(job.request())
    return _done()


def _done() -> dict[str, Any]:
    messages = dict(each for each in nursery().messages() if each[0] in (DONE, FAILED))
    if DONE not in messages:
        raise RuntimeError(f"the training did not finish: {messages}")
    result: dict[str, Any] = json.loads(messages[DONE])
    return result


# ---- the disk ---------------------------------------------------------------------------------


def full_disk_saves(seed: int, scale: Scale) -> Row:
    """The disk has room for only a part of the second checkpoint; then space is freed."""
    count = scale.pick(short=3, full=100)
    holds = "the failure is disk_full; the previous checkpoint still loads, with the same numbers"
    with timed("disk full while saving", holds) as report, TemporaryDirectory() as folder:
        home = Path(folder)
        with small_disk(home / "disk", 8) as disk:
            whole = _job(home / "whole", max_steps=3)
            undisturbed = _undisturbed(whole)
            size = sum(_pages(path) for path in (_checkpoint(whole, 1)).iterdir())
            outcomes: Counter[str] = Counter()
            for left in _offsets(count, size, random.Random(seed)):
                _fill_in_the_save(home, disk, left, undisturbed, outcomes, report)
    report.done = f"{count} free sizes from 0 to {size:,} bytes, the checkpoint's own"
    report.outcome = f"{outcomes[FailureCode.DISK_FULL]} times disk_full, each resumed from step 1"
    return report.row()


def _offsets(count: int, size: int, draw: random.Random) -> list[int]:
    """Spread over the size of the checkpoint, one in each part of it."""
    part = size / count
    return [int(part * (number + draw.random())) for number in range(count)]


def _pages(path: Path) -> int:
    return -(-path.stat().st_size // 4096) * 4096


def _checkpoint(job: Job, step: int, attempt: int = 1) -> Path:
    return job.workspace / "attempts" / str(attempt) / "checkpoints" / str(step)


def _fill_in_the_save(
    home: Path,
    disk: Path,
    left: int,
    undisturbed: dict[str, Any],
    outcomes: Counter[str],
    report: Report,
) -> None:
    job = _job(home / f"left-{left}", max_steps=3)
    folder = disk / "job"
    folder.mkdir()
    (job.home / "job").symlink_to(folder)
    nursery().start(job.request(1), fill=(disk, left))
    messages = dict(nursery().messages())
    code = json.loads(messages[FAILED])["code"] if FAILED in messages else "none"
    outcomes[code] += 1
    if code != FailureCode.DISK_FULL:
        report.faults.append(f"with {left} bytes left: {messages}")
    names = sorted(path.name for path in _checkpoint(job, 1).parent.iterdir())
    if names != ["1"] or not atomic_dir.verify(_checkpoint(job, 1)):
        report.faults.append(f"with {left} bytes left these checkpoints remain: {names}")
    free_again(disk)
    nursery().start(job.request(2, _checkpoint(job, 1)))
    resumed = _done()
    if resumed["sha256"] != undisturbed["sha256"]:
        report.faults.append(f"with {left} bytes left the resumed weights differ")
    shutil.rmtree(folder)
    shutil.rmtree(job.home)
