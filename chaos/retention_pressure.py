"""Retention without its hour of grace and with no room at all, while jobs need what it wants."""

import random
import threading
import time
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any, Final

from pydantic import SecretStr

from chaos import checker
from chaos.rows import Row, Scale, timed
from chaos.stack import FaultStack, running
from chaos.work import Undisturbed
from service.contract import prepared_data
from service.jobs import retention
from service.settings import Settings
from service.store.database import Database
from tests.e2e.stack import ENDED

HOLDS: Final = (
    "no job that has not ended misses anything: no attempt fails, the weights are the undisturbed "
    "run's; a retry is refused when its upload is gone; what nobody needs goes"
)
_SWEEP_SECONDS: Final = 0.1
_STEPS: Final = 200
_AT_ONCE: Final = 3
_WISHES: Final = ("none", "pause", "cancel and retry")
_GONE: Final = "data_gone"


def run(seed: int, scale: Scale) -> Row:
    count = scale.pick(short=3, full=45)
    draw = random.Random(seed)
    plans = [(_WISHES[n % len(_WISHES)], draw.uniform(0, 1.5)) for n in range(count)]
    with (
        timed("retention without grace or room", HOLDS) as report,
        running(workers=scale.pick(short=1, full=2)) as stack,
    ):
        jobs = _Jobs(stack)
        with _sweeping(stack) as removed, ThreadPoolExecutor(_AT_ONCE) as pool:
            list(pool.map(lambda plan: jobs.live(*plan), plans))
            stack.wait(lambda: not list(_left(stack)), 60, "the end of what nobody needs")
        report.faults += checker.broken(stack, jobs.expected)
        report.faults += [fault for job_id in jobs.expected for fault in _missed(stack, job_id)]
        report.faults += [f"no {kind} was removed" for kind in _KINDS if not removed[kind]]
        report.faults += checker.left_over(stack)
    gone = ", ".join(f"{removed[kind]} {kind}" for kind in _KINDS)
    report.done = f"{count} jobs with uploads, a third paused, a third cancelled and retried"
    wishes = ", ".join(f"{number} {wish}" for wish, number in sorted(jobs.done.items()))
    report.outcome = f"{len(jobs.expected)} ended as asked ({wishes}); removed: {gone}"
    return report.row()


class _Jobs:
    """Each with uploads of its own, and data that others may have prepared, too."""

    def __init__(self, stack: FaultStack) -> None:
        self._stack = stack
        self._body = stack.material.body(steps=_STEPS, save_steps=20)
        self._undisturbed = stack.undisturbed(self._uploaded())
        self.expected: dict[str, Undisturbed | None] = {}
        self.done: Counter[str] = Counter()

    def live(self, wish: str, seconds: float) -> None:
        """One job from its uploads to its end; `seconds` after the wish comes its opposite."""
        job_id = self._submit()
        self.expected[job_id] = self._undisturbed
        if wish != "none":
            self._stack.wait(lambda: self._is_in_train_or_over(job_id), 120, f"train of {job_id}")
            ask, rest, opposite = {
                "pause": ("pause", "paused", "resume"),
                "cancel and retry": ("cancel", "cancelled", "retry"),
            }[wish]
            self._ask(job_id, ask)
            states = (rest, *ENDED)
            self._stack.wait(lambda: self._state(job_id) in states, 60, f"{rest} of {job_id}")
            time.sleep(seconds)
            if self._state(job_id) == rest:
                refusal = self._ask(job_id, opposite)
                self.done[f"{opposite} refused" if refusal else opposite] += 1
                if refusal == _GONE:
                    self.expected[job_id] = None
        self._stack.wait_for_ends([job_id])

    def _uploaded(self) -> dict[str, Any]:
        folder = self._stack.material.folder
        files = {name: self._stack.upload(folder / f"{name}.jsonl") for name in _SPLITS}
        return self._body | {"dataset": {"source": "upload", **files}}

    def _submit(self) -> str:
        """Without the grace an upload may be gone before a job names it: again, then."""
        while True:
            answer = self._stack.request("POST", "/v1/jobs", json=self._uploaded())
            if answer.status_code == 201:
                return str(answer.json()["id"])
            assert answer.status_code in (409, 422), answer.text

    def _ask(self, job_id: str, wish: str) -> str | None:
        """The problem's code, if it is refused: the job was faster, or its data is gone."""
        answer = self._stack.request("POST", f"/v1/jobs/{job_id}/{wish}")
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
    """Sweep again and again, with nothing but the guards to stop it; what it removed, by kind."""
    removed: Counter[str] = Counter()
    database = Database(stack.database_url)
    grace, tell = retention.GRACE_SECONDS, retention._tell
    over = threading.Event()
    sweeps = retention.Retention(database, _no_room(stack))
    thread = threading.Thread(target=sweeps.run, args=(over,), name="sweeps")

    def count(what: str, gone: list[str]) -> None:
        removed[what] += len(gone)

    retention.GRACE_SECONDS, retention._tell = 0.0, count  # type: ignore[misc]
    thread.start()
    try:
        yield removed
    finally:
        over.set()
        thread.join()
        retention.GRACE_SECONDS, retention._tell = grace, tell  # type: ignore[misc]
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
    """Of uploads, prepared data and attempts, when all jobs have ended."""
    yield from (path.name for path in stack.home.glob("files/file-*"))
    root = stack.home / "cache" / prepared_data.FOLDER
    yield from (path.name for path in root.glob("*") if path.is_dir())
    yield from (str(path) for path in stack.home.glob("jobs/*/attempts/*"))


def _missed(stack: FaultStack, job_id: str) -> Iterator[str]:
    """Nothing failed here but for want of something."""
    for event in stack.pages(f"/v1/jobs/{job_id}/events"):
        if event["type"] in ("attempt_failed", "lease_expired"):
            yield f"{job_id}: {event['type']} {event['data']}"
