"""Retention with neither its hour of grace nor any room, while jobs need the files."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final
from unittest import mock

from pydantic import SecretStr

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import Undisturbed
from service.contract.stage import prepared_data
from service.jobs import retention
from service.settings import Settings
from service.store.database import Database
from tests.e2e.stack import ENDED

HOLDS: Final = (
    "a live job misses nothing: no attempt fails, the weights are the undisturbed run's; a retry "
    "is refused if its upload was removed; files that nothing needs are removed"
)
_SWEEP_SECONDS: Final = 0.1
_STEPS: Final = 200
_AT_ONCE: Final = 3
_ACTIONS: Final = ("none", "pause", "cancel and retry")
_DATA_REMOVED: Final = "data_gone"


def run(seed: int, scale: Scale) -> Row:
    count = scale.pick(short=3, full=45)
    draw = random.Random(seed)
    plans = [(_ACTIONS[n % len(_ACTIONS)], draw.uniform(0, 1.5)) for n in range(count)]
    with (
        timed("retention without grace or room", HOLDS) as report,
        running(workers=scale.pick(short=1, full=2)) as stack,
    ):
        jobs = _Jobs(stack)
        with _sweeping(stack) as removed, ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda plan: jobs.run(*plan), plans))
            stack.wait(lambda: not list(_left(stack)), 60, "the removal of unneeded files")
        report.faults += checker.broken(stack, jobs.expected)
        report.faults += [fault for job_id in jobs.expected for fault in _missed(stack, job_id)]
        report.faults += [f"no {kind} was removed" for kind in _KINDS if not removed[kind]]
        report.faults += checker.left_over(stack)
    counts = ", ".join(f"{removed[kind]} {kind}" for kind in _KINDS)
    report.done = f"{count} jobs with uploads, a third paused, a third cancelled and retried"
    actions = ", ".join(f"{number} {action}" for action, number in sorted(jobs.done.items()))
    report.outcome = f"{len(jobs.expected)} ended as requested ({actions}); removed: {counts}"
    return report.row()


class _Jobs:
    """Jobs with their own uploads, whose prepared data may be shared."""

    def __init__(self, stack: FaultStack) -> None:
        self._stack = stack
        self._body = stack.material.body(steps=_STEPS, save_steps=20)
        self._undisturbed = stack.undisturbed(self._uploaded())
        self.expected: dict[str, Undisturbed | None] = {}
        self.done: Counter[str] = Counter()

    def run(self, action: str, seconds: float) -> None:
        """One job from its uploads to its end; `seconds` after the action comes its opposite."""
        job_id = self._submit()
        self.expected[job_id] = self._undisturbed
        if action != "none":
            self._stack.wait(lambda: self._is_in_train_or_over(job_id), 120, f"train of {job_id}")
            request, settled, opposite = {
                "pause": ("pause", "paused", "resume"),
                "cancel and retry": ("cancel", "cancelled", "retry"),
            }[action]
            self._request(job_id, request)
            states = (settled, *ENDED)
            self._stack.wait(lambda: self._state(job_id) in states, 60, f"{settled} of {job_id}")
            time.sleep(seconds)
            if self._state(job_id) == settled:
                refusal = self._request(job_id, opposite)
                self.done[f"{opposite} refused" if refusal else opposite] += 1
                if refusal == _DATA_REMOVED:
                    self.expected[job_id] = None
        self._stack.wait_for_ends([job_id])

    def _uploaded(self) -> dict[str, Any]:
        folder = self._stack.material.folder
        files = {name: self._stack.upload(folder / f"{name}.jsonl") for name in _SPLITS}
        return self._body | {"dataset": {"source": "upload", **files}}

    def _submit(self) -> str:
        """Upload and submit again if an upload was removed before the job was created."""
        while True:
            answer = self._stack.request("POST", "/v1/jobs", json=self._uploaded())
            if answer.status_code == 201:
                return str(answer.json()["id"])
            assert answer.status_code in (409, 422), answer.text

    def _request(self, job_id: str, action: str) -> str | None:
        """The code of the refusal, if any: the job was faster, or its data was removed."""
        answer = self._stack.request("POST", f"/v1/jobs/{job_id}/{action}")
        assert answer.is_success or answer.status_code == 409, answer.text
        return None if answer.is_success else str(answer.json()["code"])

    def _state(self, job_id: str) -> str:
        return str(self._stack.job(job_id)["state"])

    def _is_in_train_or_over(self, job_id: str) -> bool:
        page = self._stack.job(job_id)
        return page["stage"] != "prepare" or page["state"] in ENDED


_SPLITS: Final = ("train", "validation")
_KINDS: Final = ("workspace", "upload", "prepared data")


@contextmanager
def _sweeping(stack: FaultStack) -> Iterator[Counter[str]]:
    """Sweep continuously, limited only by the guards; how many of each kind it removed."""
    removed: Counter[str] = Counter()
    database = Database(stack.database_url)
    over = threading.Event()
    sweeps = retention.Retention(database, _no_room(stack))
    thread = threading.Thread(target=sweeps.run, args=(over,), name="sweeps")

    def count(what: str, names: list[str]) -> None:
        removed[what] += len(names)

    with mock.patch.multiple(retention, GRACE_SECONDS=0.0, _log_removed=count):
        thread.start()
        try:
            yield removed
        finally:
            over.set()
            thread.join()
            database.dispose()


def _no_room(stack: FaultStack) -> Settings:
    kinds = ("workspace", "upload", "prepared")
    limits: dict[str, Any] = {
        **{f"retention_{kind}_days": 1e-6 for kind in kinds},
        **{f"retention_{kind}_bytes": 0 for kind in kinds},
    }
    return Settings(
        home=stack.home,
        database_url=SecretStr(stack.database_url),
        retention_sweep_seconds=_SWEEP_SECONDS,
        **limits,
    )


def _left(stack: FaultStack) -> Iterator[str]:
    """Uploads, prepared data and attempts that remain after all jobs have ended."""
    yield from (path.name for path in stack.home.glob("files/file-*"))
    root = stack.home / "cache" / prepared_data.FOLDER
    yield from (path.name for path in root.glob("*") if path.is_dir())
    yield from (str(path) for path in stack.home.glob("jobs/*/attempts/*"))


def _missed(stack: FaultStack, job_id: str) -> Iterator[str]:
    """Failed attempts: here only a missing file can be the reason."""
    for event in stack.pages(f"/v1/jobs/{job_id}/events"):
        if event["type"] in ("attempt_failed", "lease_expired"):
            yield f"{job_id}: {event['type']} {event['data']}"
