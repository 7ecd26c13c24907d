"""Postgres breaks connections during COMMIT, is restarted, and is unreachable."""

import random
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from sqlalchemy import make_url

from chaos.checks import checker
from chaos.faults.pace import Pace
from chaos.faults.postgres_proxy import Cut, Cutter, PostgresProxy
from chaos.rows import Report, Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import Undisturbed, stub_body
from tests.support.servers import services
from tests.support.servers.postgres_server import PostgresServer

# Each of these must have been cut, in the full attack in all three ways.
_MUST_BE_CUT: Final = (
    *("submitted", "stage_started", "stage_finished", "beat", "checkpoint"),
    *("cancel_requested", "cancelled"),
)
# The training that outages must not disturb is slow, but makes several steps during each.
_STEPS_PER_SECOND: Final = 12


def cut_commits(seed: int, scale: Scale) -> Row:
    """A share of the COMMITs of every process gets no answer. The stages do nothing, so there are
    many COMMITs."""
    jobs = scale.pick(short=5, full=60)
    holds = (
        "nothing lost, nothing twice: one terminal state, events without gaps or doubles, no "
        "attempt counted as lost"
    )
    cutter = Cutter(seed, share=0.15)
    with (
        timed("Postgres: connection cut during COMMIT", holds) as report,
        _own_server() as server,
        PostgresProxy(_port(server), cutter) as proxy,
        running(
            workers=2,
            variables=_variables(server, proxy, lease=20, beat=0.5),
            stubs=True,
        ) as stack,
    ):
        cutter.enabled = True
        expected, answers = _submit_and_cancel(stack, jobs, random.Random(seed))
        stack.wait_for_ends(list(expected))
        cutter.enabled = False
        report.faults += checker.broken(stack, expected)
        report.faults += _cancel_faults(stack, answers)
        report.faults += _lost_attempts(stack, list(expected))
        report.faults += _unknown_jobs(stack, set(expected))
        report.faults += checker.left_over(stack)
    _require_cuts(cutter, scale, report)
    report.done = f"{jobs} jobs, {len(answers)} cancelled; {cutter.summary()}"
    report.outcome = f"all {jobs} ended once, as requested; cut in: {cutter.summary_by_label()}"
    return report.row()


def _submit_and_cancel(
    stack: FaultStack, jobs: int, draw: random.Random
) -> tuple[dict[str, Undisturbed | None], dict[str, str]]:
    """Two maps: job → expected result, None if it was cancelled; job → answer to the cancel."""
    expected: dict[str, Undisturbed | None] = {}
    answers: dict[str, str] = {}
    for _ in range(jobs):
        hangs = draw.random() < 0.3
        body = stub_body(prepare="hang") if hangs else stub_body()
        job_id = stack.submit(body | {"priority": 0 if hangs else 5})
        expected[job_id] = stack.undisturbed(stub_body())
        if hangs:  # cancelled here, before or after a worker has claimed it
            if draw.random() < 0.7:
                _wait_for_a_worker(stack, job_id)
            answer = stack.request("POST", f"/v1/jobs/{job_id}/cancel")
            answers[job_id] = answer.json().get("state", f"{answer.status_code}")
            expected[job_id] = None
    return expected, answers


def _wait_for_a_worker(stack: FaultStack, job_id: str) -> None:
    stack.wait(lambda: stack.job(job_id)["state"] != "queued", 120, f"a worker for {job_id}")


def _cancel_faults(stack: FaultStack, answers: dict[str, str]) -> Iterator[str]:
    """A job whose cancel was accepted, at once or when it was repeated, is cancelled."""
    for job_id, answer in answers.items():
        state = stack.job(job_id)["state"]
        if answer in ("cancelling", "cancelled") and state != "cancelled":
            yield f"{job_id}: the cancel was answered {answer}, the job is {state}"


def _lost_attempts(stack: FaultStack, job_ids: list[str]) -> Iterator[str]:
    """No process died here: an attempt that counts as lost only missed an answer."""
    for job_id in job_ids:
        for event in stack.pages(f"/v1/jobs/{job_id}/events"):
            if event["type"] == "lease_expired":
                yield f"{job_id}: attempt {event['data']} was counted as lost"


def _unknown_jobs(stack: FaultStack, known: set[str]) -> Iterator[str]:
    """A submit that is repeated after a lost answer makes no second job."""
    page = stack.request("GET", "/v1/jobs", params={"limit": 100}).json()
    for job in page["data"]:
        if job["id"] not in known:
            yield f"{job['id']} was created, but no answer named it"


def _require_cuts(cutter: Cutter, scale: Scale, report: Report) -> None:
    wanted = [(label, cut) for label in _MUST_BE_CUT for cut in Cut]
    missing = [f"{label} {cut}" for label, cut in wanted if not cutter.cuts[label, cut]]
    if scale is Scale.FULL and missing:
        report.faults.append(f"this seed never cuts {', '.join(missing)}")


# ---- outages ----------------------------------------------------------------------------------


def outages(seed: int, scale: Scale) -> Row:
    """While a job trains and others wait, the server is restarted, crashes, and is unreachable for
    a while; each time all connections break."""
    seconds = scale.pick(short=2.0, full=30.0)
    rounds = scale.pick(short=1, full=3)
    holds = "running work continues: same attempt, same epoch, same weights; waiting jobs are run"
    draw = random.Random(seed)
    steps = int(_STEPS_PER_SECOND * rounds * (seconds + 15))
    with (
        timed("Postgres: restarted, unreachable", holds) as report,
        _own_server() as server,
        PostgresProxy(_port(server), lambda _: None) as proxy,
        running(
            # The default lease: on a busy machine a restart takes long, too.
            variables=_variables(server, proxy, lease=60, beat=1),
            stubs=scale is Scale.SHORT,
        ) as stack,
    ):
        body = _body(stack, scale, steps)
        undisturbed = stack.undisturbed(body)
        long = stack.submit(body)
        with _pace(stack, long, steps) as pace:
            waiting = [stack.submit(_body(stack, scale, steps=4)) for _ in range(2)]
            stack.wait_for_step(long, 4)
            for _ in range(rounds):
                for outage in (_restart, _crash, _unreachable):
                    before = pace.step
                    outage(server, proxy, seconds)
                    time.sleep(draw.uniform(0.5, 2))
                    if pace.step == before and not pace.is_at_limit:
                        report.faults.append(f"no checkpoint after {before} in {outage.__name__}")
            during = stack.job(long)
        stack.wait_for_ends([long, *waiting])
        expected: dict[str, Undisturbed | None] = {long: undisturbed}
        expected |= dict.fromkeys(waiting)
        report.faults += checker.broken(stack, expected)
        report.faults += _lost_attempts(stack, list(expected))
        report.faults += [
            f"{job_id} ended as {state}"
            for job_id in expected
            if (state := stack.job(job_id)["state"]) != "succeeded"
        ]
        attempts = _train_attempts(stack, long)
        if attempts != 1:
            report.faults.append(f"the running training was started {attempts} times")
        if during["state"] != "running":
            report.faults.append(f"after the last outage the training is {during['state']}")
        report.faults += checker.left_over(stack)
    report.done = (
        f"{rounds} times: restart, crash, {seconds:.0f} s unreachable; one job trains, 2 wait"
    )
    report.outcome = "one attempt of train, the weights equal, the waiting jobs succeeded"
    return report.row()


def _body(stack: FaultStack, scale: Scale, steps: int) -> dict[str, Any]:
    if scale is Scale.SHORT:
        return stub_body(steps=steps, seconds=0.01)
    return stack.material.body(steps=steps, logging_steps=10)


def _pace(stack: FaultStack, job_id: str, steps: int) -> Pace:
    """Up to a few steps before the end: outages on a slow machine last longer than planned."""
    [worker] = stack.workers
    workspace = stack.home / "jobs" / job_id
    rate, limit = _STEPS_PER_SECOND, steps - 20
    return Pace(stack.parts[worker], workspace, steps_per_second=rate, limit=limit)


def _restart(server: PostgresServer, _proxy: PostgresProxy, _seconds: float) -> None:
    server.end()
    server.start()
    _wait_until_ready(server)


def _crash(server: PostgresServer, _proxy: PostgresProxy, _seconds: float) -> None:
    server.end(signal.SIGQUIT)
    server.start()
    _wait_until_ready(server)


def _unreachable(_server: PostgresServer, proxy: PostgresProxy, seconds: float) -> None:
    proxy.disconnect()
    time.sleep(seconds)
    proxy.listen()


def _train_attempts(stack: FaultStack, job_id: str) -> int:
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    return sum(e["type"] == "stage_started" and e["data"]["stage"] == "train" for e in events)


# ---- the server -------------------------------------------------------------------------------


@contextmanager
def _own_server() -> Iterator[PostgresServer]:
    server = PostgresServer(services.free_port())
    try:
        _wait_until_ready(server)
        yield server
    finally:
        server.stop()


def _wait_until_ready(server: PostgresServer) -> None:
    services.wait_until(lambda: services.postgres_answers(server.url), 60, "our own Postgres")


def _port(server: PostgresServer) -> int:
    port = make_url(server.url).port
    assert port is not None
    return port


def _variables(
    server: PostgresServer, proxy: PostgresProxy, *, lease: float, beat: float
) -> dict[str, str]:
    url = make_url(server.url).set(port=proxy.port)
    return {
        "FINETUNE_DATABASE_URL": url.render_as_string(hide_password=False),
        "FINETUNE_LEASE_SECONDS": str(lease),
        "FINETUNE_KILL_SECONDS": str(lease * 0.8),
        "FINETUNE_BEAT_SECONDS": str(beat),
    }
