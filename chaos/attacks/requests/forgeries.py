"""Messages and rows that no part of this version would write."""

import uuid
from pathlib import Path
from typing import Final

from pydantic import SecretStr
from sqlalchemy import update

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import stub_body
from service.contract.routing import Message, MessageKind
from service.contract.spec.spec import SPEC_VERSION
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database
from service.store.tables.jobs import JobRow
from tests.support.workers.forged_messages import SIGNS, send_forged

HOLDS: Final = "each is refused and logged, none is run, and the worker continues to work"

_NEWER: Final = "job.version_unsupported"


def run(_seed: int, scale: Scale) -> Row:
    rounds = scale.pick(short=1, full=50)
    with (
        timed("forged messages", HOLDS) as report,
        running(workers=1, stubs=True) as stack,
    ):
        [worker] = stack.workers
        trap = stack.home / "trapped"
        # The job must not run before it is changed.
        stack.parts[worker].stop()
        newer = _job_of_a_newer_version(stack)
        stack.start_worker()
        pid = stack.parts[worker].process.pid
        for _ in range(rounds):
            send_forged(stack.broker.url, trap)
            _enqueue(stack, "job-unknown")
            _enqueue(stack, newer)
        valid = stack.submit(stub_body())
        stack.wait_for_ends([valid])
        log = (stack.home / f"{worker}.log").read_text()
        report.faults += [f"not logged: {sign}" for sign in (*SIGNS, _NEWER) if sign not in log]
        if trap.exists():
            report.faults.append("the pickle was opened")
        if stack.parts[worker].process.pid != pid:
            report.faults.append("the worker died")
        if stack.job(newer)["state"] != "queued":
            report.faults.append(f"the job of a newer version is {stack.job(newer)['state']}")
        stack.request("POST", f"/v1/jobs/{newer}/cancel").raise_for_status()
        expected = {valid: stack.undisturbed(stub_body()), newer: None}
        report.faults += checker.broken(stack, expected)
        report.faults += checker.left_over(stack)
        report.done = (
            f"{rounds} times a pickle, broken JSON, wrong arguments, an unknown task, an unknown "
            "job, a job of a newer version; then a valid job"
        )
        report.outcome = "all refused and logged; the same process ran the valid job"
    return report.row()


def _job_of_a_newer_version(stack: FaultStack) -> str:
    """Its spec has a field that this version does not know."""
    job_id = stack.submit(stub_body())
    database = Database(stack.database_url)
    with database.write() as session:
        row = session.get_one(JobRow, job_id)
        newer = {**row.spec, "of_tomorrow": uuid.uuid4().hex}
        session.execute(
            update(JobRow)
            .where(JobRow.id == job_id)
            .values(spec=newer, spec_version=SPEC_VERSION + 1)
        )
    database.dispose()
    return job_id


def _enqueue(stack: FaultStack, job_id: str) -> None:
    dispatcher = Dispatcher(Settings(home=Path(), redis_url=SecretStr(stack.broker.url)))
    assert dispatcher.enqueue(Message(MessageKind.JOB, job_id, "cpu", 0))
    dispatcher.close()
