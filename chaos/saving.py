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

from chaos.nursery import DONE, ENDED, FAILED, SAVED, SAVING, nursery
from chaos.rows import Report, Row, Scale, timed
from chaos.small_disk import free_again, small_disk
from service.contract.failures import FailureCode
from tests.training.support import Job
from worker.storage import atomic_dir

_TRAINING: dict[str, Any] = {
    "logging_steps": 1,
    "learning_rate": 1e-2,
    "per_device_train_batch_size": 4,
    "save_steps": 1,
}


def killed_saves(seed: int, scale: Scale) -> Row:
    """SIGKILL inside the save; every life after it goes on from what it finds on disk."""
    kills = scale.pick(short=6, full=200)
    holds = "each restart loads a checkpoint that verifies; the weights are the undisturbed run's"
    with timed("SIGKILL inside the save", holds) as report, TemporaryDirectory() as folder:
        home = Path(folder)
        # A life is killed in its fifth save at the latest.
        job = _job(home / "killed", max_steps=kills * 5 + 5)
        lives = _Lives(job, random.Random(seed), report)
        lives.live_and_die(kills)
        weights = lives.finish()
        undisturbed = _undisturbed(_job(home / "whole", **job.training))
    report.done = f"{lives.kills} SIGKILLs, {lives.inside} of them while a save was being made"
    report.outcome = (
        f"{lives.attempt} lives, {lives.verified} checkpoints verified, the weights equal after "
        f"{job.training['max_steps']} steps"
    )
    if weights != undisturbed["sha256"]:
        report.faults.append(f"weights {weights} are not those of the undisturbed run")
    if lives.inside < kills // 2:
        report.faults.append(f"only {lives.inside} kills fell inside a save: this tests too little")
    return report.row()


@dataclass
class _Lives:
    job: Job
    random: random.Random
    report: Report
    attempt: int = 0
    kills: int = 0
    inside: int = 0
    verified: int = 0

    def live_and_die(self, kills: int) -> None:
        """Each life is killed in one of its first saves, at an instant within its length."""
        while self.kills < kills and not self.report.faults:
            pid = self._start()
            seconds = self._watch_saves(self.random.randint(1, 4))
            if seconds is None:
                return
            time.sleep(self.random.uniform(0, seconds))
            os.kill(pid, signal.SIGKILL)
            self.kills += 1
            self.inside += SAVED not in [word for word, _ in nursery().words()]
            self._look()

    def _watch_saves(self, count: int) -> float | None:
        """Seconds of the last whole save, once the one after it has begun; None: it has ended."""
        begun = seconds = 0.0
        while count >= 0:
            word, _ = nursery().word()
            if word in (DONE, FAILED, ENDED):
                self.report.faults.append(f"life {self.attempt} ended by itself: {word}")
                return None
            if word == SAVED:
                seconds = time.monotonic() - begun
            elif word == SAVING:
                begun, count = time.monotonic(), count - 1
        return seconds

    def finish(self) -> str:
        """Live on to the end, undisturbed; the weights' sha256."""
        self._start()
        return str(_done()["sha256"])

    def _start(self) -> int:
        newest = self._newest()
        self.attempt += 1
        return nursery().start(self.job.request(self.attempt, newest))

    def _look(self) -> None:
        """Whatever has a checkpoint's name must be one. Then prune, as the supervisor does."""
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
    """What looks like a checkpoint, the oldest first; those of later attempts after earlier."""
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
    words = dict(word for word in nursery().words() if word[0] in (DONE, FAILED))
    if DONE not in words:
        raise RuntimeError(f"a life did not come to its end: {words}")
    result: dict[str, Any] = json.loads(words[DONE])
    return result


# ---- the disk ---------------------------------------------------------------------------------


def full_disk_saves(seed: int, scale: Scale) -> Row:
    """The disk has room for a part of the second checkpoint; then it is made larger again."""
    count = scale.pick(short=3, full=100)
    holds = "the failure is disk_full; the checkpoint before it still loads, to the same numbers"
    with timed("disk full while saving", holds) as report, TemporaryDirectory() as folder:
        home = Path(folder)
        with small_disk(home / "disk", 8) as disk:
            whole = _job(home / "whole", max_steps=3)
            undisturbed = _undisturbed(whole)
            size = sum(_pages(path) for path in (_checkpoint(whole, 1)).iterdir())
            told: Counter[str] = Counter()
            for left in _offsets(count, size, random.Random(seed)):
                _fill_in_the_save(home, disk, left, undisturbed, told, report)
    report.done = f"{count} free sizes from 0 to {size:,} bytes, the checkpoint's own"
    report.outcome = f"{told[FailureCode.DISK_FULL]} times disk_full, each resumed from step 1"
    return report.row()


def _offsets(count: int, size: int, draw: random.Random) -> list[int]:
    """Spread over the whole checkpoint, each within its own part of it."""
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
    told: Counter[str],
    report: Report,
) -> None:
    job = _job(home / f"left-{left}", max_steps=3)
    folder = disk / "job"
    folder.mkdir()
    (job.home / "job").symlink_to(folder)
    nursery().start(job.request(1), fill=(disk, left))
    words = dict(nursery().words())
    code = json.loads(words[FAILED])["code"] if FAILED in words else "none"
    told[code] += 1
    if code != FailureCode.DISK_FULL:
        report.faults.append(f"with {left} bytes left: {words}")
    names = sorted(path.name for path in _checkpoint(job, 1).parent.iterdir())
    if names != ["1"] or not atomic_dir.verify(_checkpoint(job, 1)):
        report.faults.append(f"with {left} bytes left these checkpoints stay: {names}")
    free_again(disk)
    nursery().start(job.request(2, _checkpoint(job, 1)))
    resumed = _done()
    if resumed["sha256"] != undisturbed["sha256"]:
        report.faults.append(f"with {left} bytes left the resumed weights differ")
    shutil.rmtree(folder)
    shutil.rmtree(job.home)
