"""The disk under FINETUNE_HOME, with database, logs, caches and models, is full while jobs run."""

import random
import shutil
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any, Final

from chaos.checks import checker
from chaos.faults.pace import Pace
from chaos.faults.small_disk import free_again, leave_free, small_disk
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running

HOLDS: Final = (
    "once there is space again, everything continues without intervention, and each job succeeds "
    "with the undisturbed weights"
)
_MEBIBYTES: Final = 64
_STEPS: Final = 60
_MOMENTS: Final = ("train", "prepare", "submit", "finish")


def run(seed: int, scale: Scale) -> Row:
    rounds = scale.pick(short=2, full=24)
    draw = random.Random(seed)
    ended: Counter[str] = Counter()
    with (
        timed("disk full anywhere", HOLDS) as report,
        tempfile.TemporaryDirectory() as folder,
        small_disk(Path(folder) / "home", _MEBIBYTES) as disk,
        running(home=disk) as stack,
    ):
        body = stack.material.body(steps=_STEPS, save_steps=2)
        undisturbed = stack.undisturbed(body)
        jobs = {}
        for number in range(rounds):
            moment = _MOMENTS[number % len(_MOMENTS)]
            # Otherwise `prepare` would find the previous job's data.
            shutil.rmtree(disk / "cache" / "prepared", ignore_errors=True)
            job_id = _fill(stack, disk, moment, body | {"name": f"{number}"}, draw)
            stack.wait_for_ends([job_id])
            page = stack.job(job_id)
            code = (page["failure"] or {}).get("code", page["state"])
            ended[f"{code} ({moment})"] += 1
            jobs[job_id] = undisturbed if page["state"] == "succeeded" else None
            if code != "succeeded":
                report.faults.append(f"{moment}: {page['failure']}")
        report.faults += checker.broken(stack, jobs)
        report.faults += checker.left_over(stack)
    report.done = f"{rounds} times full for seconds, with 0 to 200,000 bytes left, then free again"
    report.outcome = ", ".join(f"{count} {what}" for what, count in sorted(ended.items()))
    return report.row()


def _fill(
    stack: FaultStack, disk: Path, moment: str, body: dict[str, Any], draw: random.Random
) -> str:
    """Submit a job and fill the disk for a few seconds at the given moment; the job's id."""
    left, seconds = draw.randrange(200_000), draw.uniform(2, 6)
    if moment == "submit":
        leave_free(disk, 0)
        space = threading.Timer(seconds, free_again, [disk])
        space.start()
        job_id = stack.submit(body)  # answered with 503 until there is space
        space.join()
        return job_id
    job_id = stack.submit(body)
    if moment == "prepare":
        stack.wait(lambda: stack.job(job_id)["state"] != "queued", 60, "the start of prepare")
        leave_free(disk, left)
    else:
        step = _STEPS - 2 if moment == "finish" else draw.randint(1, _STEPS - 10)
        [worker] = stack.workers
        with Pace(stack.parts[worker], disk / "jobs" / job_id, limit=step) as pace:
            stack.wait(lambda: pace.is_at_limit, 120, f"step {step}")
            leave_free(disk, left)
    time.sleep(seconds)
    free_again(disk)
    return job_id
