"""Damaged checkpoints: truncated, bit-flipped, mixed up."""

import json
import os
import random
import shutil
from collections import Counter
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from chaos.attacks.trainings.nursery import DONE, FAILED, REGISTERED, nursery
from chaos.rows import Report, Row, Scale, timed
from service.contract.failures import FailureCode, StageError
from service.contract.stage.events import CheckpointSaved
from service.contract.states import Stage
from service.settings import Settings
from service.store import schema
from service.store.database import Database
from service.store.jobs import attempt_reports, claims, endings
from service.store.jobs.claims import Claim
from tests.support.factories import POLICY, claim_job, make_job
from tests.training.support.jobs import Job
from worker.storage import atomic_dir
from worker.supervision import stage_request
from worker.tracking.trackers import NullTracker

_STEPS = 4


def run(seed: int, scale: Scale) -> Row:
    rounds = scale.pick(short=12, full=400)
    loads = scale.pick(short=2, full=60)
    holds = "an older checkpoint that verifies is used, or the job fails with checkpoint_unreadable"
    draw = random.Random(seed)
    outcomes: Counter[str] = Counter()
    with timed("damaged checkpoints", holds) as report, ExitStack() as parts:
        home = Path(parts.enter_context(TemporaryDirectory()))
        written = _write(home)
        choices = _Choices(home, written)
        parts.callback(choices.close)
        for number in range(rounds):
            _choose(choices, draw, outcomes, report, number)
        for _ in range(loads):
            _load(written, draw, outcomes, report)
    report.done = f"{rounds} jobs with 1 to {_STEPS} damaged checkpoints; {loads} loaded directly"
    report.outcome = ", ".join(f"{count} {word}" for word, count in sorted(outcomes.items()))
    return report.row()


def _write(home: Path) -> Job:
    """A job of the real train stage with a checkpoint of each step."""
    (home / "training").mkdir()
    job = Job(home / "training", {"max_steps": _STEPS, "save_steps": 1, "learning_rate": 1e-2})
    nursery().start(job.request())
    kinds = [kind for kind, _ in nursery().messages()]
    assert kinds.count(REGISTERED) == _STEPS, kinds
    assert DONE in kinds, kinds
    return job


def _folder(workspace: Path, step: int) -> Path:
    return workspace / "attempts" / "1" / "checkpoints" / str(step)


# ---- the damage -------------------------------------------------------------------------------


def _truncate(path: Path, draw: random.Random, _: Path) -> None:
    os.truncate(path, draw.randrange(path.stat().st_size))


def _flip(path: Path, draw: random.Random, _: Path) -> None:
    content = bytearray(path.read_bytes())
    content[draw.randrange(len(content))] ^= 1 << draw.randrange(8)
    path.write_bytes(content)


def _zero(path: Path, draw: random.Random, _: Path) -> None:
    """A page whose content a crash lost."""
    content = bytearray(path.read_bytes())
    start = draw.randrange(len(content))
    page = slice(start, min(start + 4096, len(content)))
    if any(content[page]):
        content[page] = bytes(len(content[page]))
        path.write_bytes(content)
    else:
        path.unlink()


def _lengthen(path: Path, draw: random.Random, _: Path) -> None:
    with path.open("ab") as stream:
        stream.write(draw.randbytes(1 + draw.randrange(100)))


def _lose(path: Path, _draw: random.Random, _: Path) -> None:
    path.unlink()


def _mix_up(path: Path, _draw: random.Random, other: Path) -> None:
    """The intact file of another step's checkpoint, or its whole folder if the files are equal."""
    if path.read_bytes() == (other / path.name).read_bytes():
        shutil.rmtree(path.parent)
        shutil.copytree(other, path.parent)
    else:
        shutil.copy(other / path.name, path)


_DAMAGE: Sequence[Callable[[Path, random.Random, Path], None]] = (
    *(_truncate, _flip, _zero),
    *(_lengthen, _lose, _mix_up),
)


def _damage_file(folder: Path, other: Path, draw: random.Random) -> str:
    """Damage a file; which one, and how."""
    path = draw.choice(sorted(folder.iterdir()))
    method = draw.choice(_DAMAGE)
    method(path, draw, other)
    return f"{method.__name__.strip('_')} {path.name}"


# ---- what the supervisor chooses -------------------------------------------------------------


class _Choices:
    """Jobs in SQL whose registered checkpoints are copies of the written ones."""

    def __init__(self, home: Path, written: Job) -> None:
        self._written = written
        self._settings = Settings(home=home / "service")
        self.database = Database(self._settings.sqlalchemy_url)
        schema.upgrade(self.database.engine)

    def close(self) -> None:
        self.database.dispose()

    def job(self) -> tuple[Claim, Path]:
        """A job at its second attempt of `train`, and its workspace."""
        job_id = make_job(self.database)
        first = claim_job(self.database, job_id)
        workspace = self._settings.workspace(job_id)
        shutil.copytree(self._written.workspace, workspace)
        with self.database.write() as session:
            for step in range(1, _STEPS + 1):
                saved = _saved(workspace, step)
                assert attempt_reports.record(session, job_id, first.epoch, [saved]) is not None
            row = claims.held(session, job_id, first.epoch)
            assert row is not None
            row.stage = Stage.TRAIN
            endings.end(session, job_id, first.epoch, endings.Ending.released(), POLICY)
        return claim_job(self.database, job_id), workspace

    def resume_from(self, claim: Claim) -> Path | None:
        tracker = NullTracker()
        return stage_request.build(self.database, self._settings, tracker, claim).resume_from


def _saved(workspace: Path, step: int) -> CheckpointSaved:
    folder = _folder(workspace, step)
    return CheckpointSaved(
        step=step,
        path=str(folder.relative_to(workspace)),
        bytes=atomic_dir.total_bytes(folder),
        manifest_sha256=atomic_dir.manifest_sha256(folder),
    )


def _choose(
    choices: _Choices, draw: random.Random, outcomes: Counter[str], report: Report, number: int
) -> None:
    claim, workspace = choices.job()
    damaged = draw.sample(range(1, _STEPS + 1), draw.randint(1, _STEPS))
    others = {step: _folder(choices._written.workspace, step % _STEPS + 1) for step in damaged}
    damage = {s: _damage_file(_folder(workspace, s), others[s], draw) for s in sorted(damaged)}
    intact = [step for step in range(1, _STEPS + 1) if step not in damaged]
    wanted = str(_folder(workspace, max(intact))) if intact else FailureCode.CHECKPOINT_UNREADABLE
    try:
        chosen = str(choices.resume_from(claim))
    except StageError as error:
        chosen = error.failure.code
    if chosen != wanted:
        report.faults.append(f"round {number}: {damage}: {chosen} instead of {wanted}")
    outcomes["fell back to an older one" if intact else "checkpoint_unreadable"] += 1
    shutil.rmtree(workspace)


# ---- what the stage loads ---------------------------------------------------------------------


def _load(written: Job, draw: random.Random, outcomes: Counter[str], report: Report) -> None:
    """Even if the stage is given such a folder, it does not load it."""
    step = draw.randint(1, _STEPS - 1)
    folder = written.workspace / "damaged" / str(step)
    shutil.copytree(_folder(written.workspace, step), folder)
    damage = ""
    while not damage or atomic_dir.verify(
        folder
    ):  # the intact checkpoint of another step is not damage
        damage = _damage_file(folder, _folder(written.workspace, step + 1), draw)
    nursery().start(written.request(2, folder))
    messages = dict(nursery().messages())
    failure: dict[str, Any] = json.loads(messages[FAILED]) if FAILED in messages else {}
    if failure.get("code") != FailureCode.CHECKPOINT_UNREADABLE:
        report.faults.append(f"{damage}: {messages}")
    outcomes["not loaded"] += 1
    shutil.rmtree(folder)
