"""A hostile training tries every path out of its sandbox, then bombs and lies."""

import json
from collections.abc import Iterator, Mapping
from typing import Any, Final

from chaos.checks import checker
from chaos.rows import Report, Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import stub_body
from service.contract.failures import FailureCode
from service.settings import Settings
from tests.sandbox.targets import OPEN, SECRET, Targets, targets
from tests.support.servers.packages import UnavailableError
from worker.sandbox import layers
from worker.sandbox.view import Layer

HOLDS: Final = (
    "nothing is read, written, signalled or reached outside of the view; lies and bombs end with "
    "their code; the worker lives, and an ordinary job succeeds"
)
_MIB: Final = 1024**2
_LIMITS: Final = {
    "FINETUNE_STAGE_MEMORY_BYTES": str(400 * _MIB),
    "FINETUNE_STAGE_DISK_BYTES": str(200 * _MIB),
    "FINETUNE_STAGE_PROCESSES": "100",
    # A bomb may take the processor from the heartbeat for a moment.
    "FINETUNE_LEASE_SECONDS": "60",
    "FINETUNE_KILL_SECONDS": "30",
}
_LIES: Final = {
    "link": FailureCode.STAGE_UNTRUSTWORTHY,
    "outside": FailureCode.STAGE_UNTRUSTWORTHY,
    "checkpoint": FailureCode.STAGE_UNTRUSTWORTHY,
    "long-line": None,
    "numbers": None,
    "flood": None,
}
_BOMBS: Final = {
    "memory": FailureCode.OUT_OF_MEMORY,
    "processes": FailureCode.PROCESS_LIMIT,
    "disk": FailureCode.DISK_LIMIT,
}


def run(_seed: int, scale: Scale) -> Row:
    """FULL: with both layers, and with each alone, as on a kernel that lacks the other."""
    both = ",".join(Layer)
    kinds = [both] if scale is Scale.SHORT else [both, *Layer]
    found = layers.used(Settings())
    if len(found) < len(Layer):
        raise UnavailableError(f"this machine has only {', '.join(found) or 'no layer'}")
    tried = 0
    with timed("hostile stages", HOLDS) as report:
        for kind in kinds:
            variables = {"FINETUNE_SANDBOX_LAYERS": kind, "FINETUNE_HUB_TOKEN": SECRET, **_LIMITS}
            with running(stubs=True, variables=variables) as stack:
                tried += _attack(stack, kind, report)
        report.done = (
            f"{tried} paths out of a training, {len(_LIES)} lies and {len(_BOMBS)} bombs, with "
            + ", then ".join(kind.replace(",", " and ") for kind in kinds)
        )
        report.outcome = "nothing got out, except what the job's notice names for Landlock alone"
    return report.row()


def _attack(stack: FaultStack, kind: str, report: Report) -> int:
    """The number of paths that were tried."""
    [worker] = stack.workers
    pid = stack.parts[worker].process.pid
    with targets(stack.home) as aims:
        aims.metadata["hostile.pid"] = str(pid)
        job_id = _end(stack, _hostile(aims), None, report)
        got = _successes(stack, job_id)
        tried = len(got["tried"])
        report.faults += [
            f"{kind}: {name} got {what}"
            for name, what in got["successes"].items()
            if name not in OPEN[kind]
        ]
        if aims.heard and kind != Layer.LANDLOCK:
            report.faults.append(f"{kind}: a socket heard {aims.heard[:3]}")
        for lie, code in _LIES.items():
            _end(stack, _hostile(aims, lie), code, report)
    for bomb, code in _BOMBS.items():
        _end(stack, stub_body(train=f"bomb:{bomb}"), code, report)
    valid = stack.submit(stub_body())
    stack.wait_for_ends([valid])
    report.faults += checker.broken(stack, {valid: stack.undisturbed(stub_body())})
    if stack.parts[worker].process.pid != pid:
        report.faults.append(f"{kind}: the worker died")
    report.faults += checker.left_over(stack)
    return tried


def _hostile(aims: Targets, lie: str = "") -> dict[str, Any]:
    body = stub_body()
    more = {"hostile.lie": lie} if lie else {}
    body["metadata"] |= {**aims.metadata, **more}
    return body


def _end(
    stack: FaultStack, body: Mapping[str, Any], code: FailureCode | None, report: Report
) -> str:
    """Run the job; None as `code`: it must succeed. Its id."""
    job_id = stack.submit({**body, "max_retries": 0})
    stack.wait_for_ends([job_id])
    page = stack.job(job_id)
    found = (page["failure"] or {}).get("code")
    if found != code:
        wanted = code or "success"
        metadata = body["metadata"]
        name = metadata.get("hostile.lie") or metadata.get("stub.train") or "the attack"
        report.faults.append(f"{name} ended with {found}, not {wanted}")
    return job_id


def _successes(stack: FaultStack, job_id: str) -> dict[str, Any]:
    found = list(_reports(stack, job_id))
    return found[0] if found else {"tried": [], "successes": {"the attack did not run": job_id}}


def _reports(stack: FaultStack, job_id: str) -> Iterator[dict[str, Any]]:
    for file in (stack.home / "jobs" / job_id).glob("attempts/*/successes.json"):
        yield json.loads(file.read_text())
