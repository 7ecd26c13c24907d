"""MLflow behind an unreliable network, and killed: no job is affected, and no number is missing."""

import signal
import tempfile
import time
from collections.abc import Iterator
from contextlib import nullcontext
from pathlib import Path
from typing import Final

from chaos.checks import checker
from chaos.faults.weather import Storm, WeatherProxy
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import stub_body
from tests.support.servers.mlflow_server import MlflowServer, shared_uri

HOLDS: Final = (
    "no job fails or is repeated because of it; each job has one run with all its numbers, none "
    "twice, and with the job's status"
)
# Longer than the worker waits for an answer.
_SLOW_SECONDS: Final = 6.0


def run(seed: int, scale: Scale) -> Row:
    jobs = scale.pick(short=1, full=12)
    full = scale is Scale.FULL
    storm = Storm(seed, share=0.4)
    with (
        timed("MLflow unreachable, slow, 429, 5xx, truncated", HOLDS) as report,
        tempfile.TemporaryDirectory() as folder,
        MlflowServer(Path(folder)) if full else nullcontext() as server,
        WeatherProxy(_uri(server), storm, _SLOW_SECONDS) as proxy,
        running(
            workers=scale.pick(short=1, full=2),
            variables={"FINETUNE_MLFLOW_URI": proxy.url},
            stubs=not full,
        ) as stack,
    ):
        stack.mlflow_uri = _uri(server)  # the checker does not use the proxy
        storm.is_over = True
        body = stack.material.body(steps=60) if full else stub_body(steps=60, seconds=0.1)
        undisturbed = stack.undisturbed(body)
        storm.is_over = False
        expected = {stack.submit(body): undisturbed for _ in range(jobs)}
        ends = dict.fromkeys(expected, "succeeded")
        if full:
            ends |= _failed_and_cancelled(stack)
            time.sleep(5)
            assert server is not None
            server.stop(signal.SIGKILL)
            time.sleep(20)
            server.start()
        stack.wait_for_ends(list(ends))
        storm.is_over = True
        report.faults += checker.broken(stack, {id_: expected.get(id_) for id_ in ends})
        for job_id, state in ends.items():
            report.faults += _job_faults(stack, job_id, state)
        report.faults += checker.left_over(stack)
    killed = ", MLflow killed and unreachable for 20 s" if full else ""
    report.done = f"{len(ends)} jobs; {storm.summary()}{killed}"
    report.outcome = f"{len(ends)} runs complete, each point once, each with its job's status"
    return report.row()


def _uri(server: MlflowServer | None) -> str:
    return shared_uri() if server is None else server.uri


def _failed_and_cancelled(stack: FaultStack) -> dict[str, str]:
    """A job that fails and one that is cancelled while it trains."""
    failing = stack.submit(stack.material.body(learning_rate=1e30))
    endless = stack.submit(stack.material.body(steps=1_000_000))
    stack.wait_for_step(endless, 5)
    stack.request("POST", f"/v1/jobs/{endless}/cancel")
    return {failing: "failed", endless: "cancelled"}


def _job_faults(stack: FaultStack, job_id: str, state: str) -> Iterator[str]:
    page = stack.job(job_id)
    if page["state"] != state:
        yield f"{job_id} is {page['state']} instead of {state}: {page['failure']}"
    events = stack.pages(f"/v1/jobs/{job_id}/events")
    started = [event["data"]["stage"] for event in events if event["type"] == "stage_started"]
    if len(started) != len(set(started)):
        yield f"{job_id} was started again: {started}"
