"""Equal POSTs at the same time, and POSTs that are repeated after their answer was cut off."""

import json
import random
import socket
import struct
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Final
from urllib.parse import urlsplit

import httpx

from chaos.checks import checker
from chaos.rows import Row, Scale, timed
from chaos.stack.fault_stack import FaultStack, running
from chaos.stack.work import stub_body

HOLDS: Final = "one job for each Idempotency-Key, and every answer names it"

_TRIES: Final = 50


def run(seed: int, scale: Scale) -> Row:
    rounds = scale.pick(short=2, full=20)
    at_once = 100
    cuts = scale.pick(short=30, full=500)
    rng = random.Random(seed)
    with (
        timed("equal POSTs, cut answers", HOLDS) as report,
        running(workers=0, database="postgres") as stack,
    ):
        for number in range(rounds):
            report.faults += _all_at_once(stack, f"same-{number}", at_once)
        for number in range(cuts):
            # The whole answer takes about 20 ms.
            report.faults += _cut_and_repeat(stack, f"cut-{number}", rng.uniform(0, 0.03))
        jobs = stack.http.get("/v1/jobs", params={"limit": 100}).json()
        ids = [job["id"] for job in jobs["data"]]
        if not jobs["has_more"] and len(ids) != rounds + cuts:
            report.faults.append(f"{len(ids)} jobs for {rounds + cuts} keys")
        for job_id in ids:
            stack.request("POST", f"/v1/jobs/{job_id}/cancel").raise_for_status()
        report.faults += checker.broken(stack, dict.fromkeys(ids))
        report.faults += checker.left_over(stack)
        report.done = (
            f"{rounds} times {at_once} equal POSTs at once; {cuts} POSTs cut off within 30 ms and "
            f"sent again, seed {seed}"
        )
        report.outcome = f"{rounds + cuts} keys, {rounds + cuts} jobs"
    return report.row()


def _all_at_once(stack: FaultStack, key: str, count: int) -> list[str]:
    with ThreadPoolExecutor(count) as pool:
        ids = set(pool.map(lambda _: _submit(stack.url, key), range(count)))
    return _more_than_one(stack, key, ids)


def _submit(url: str, key: str) -> str:
    """The job's id; repeated while another request with the key is in flight."""
    with httpx.Client(base_url=url, timeout=60) as client:
        for _ in range(_TRIES):
            answer = client.post("/v1/jobs", json=_body(key), headers={"Idempotency-Key": key})
            if answer.status_code == 201:
                return str(answer.json()["id"])
            if answer.status_code not in (409, 503):
                return f"{answer.status_code} {answer.text}"
            time.sleep(0.1)
    return f"only 409 and 503 in {_TRIES} tries"


def _cut_and_repeat(stack: FaultStack, key: str, seconds: float) -> list[str]:
    _post_and_reset(stack.url, key, seconds)
    return _more_than_one(stack, key, {_submit(stack.url, key)})


def _post_and_reset(url: str, key: str, seconds: float) -> None:
    """Send the whole request, and reset the connection before the answer can have been read."""
    address = urlsplit(url)
    body = json.dumps(_body(key)).encode()
    head = (
        f"POST /v1/jobs HTTP/1.1\r\nHost: {address.netloc}\r\nContent-Type: application/json\r\n"
        f"Idempotency-Key: {key}\r\nContent-Length: {len(body)}\r\n\r\n"
    )
    with socket.create_connection((str(address.hostname), int(address.port or 80))) as connection:
        connection.sendall(head.encode() + body)
        time.sleep(seconds)
        # Lingers for 0 s: close sends RST.
        connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))


def _body(key: str) -> dict[str, Any]:
    return stub_body(key=key)


def _more_than_one(stack: FaultStack, key: str, answered: set[str]) -> list[str]:
    """A fault unless exactly one job has the key and all answers name it."""
    found = stack.request("GET", "/v1/jobs", params={"metadata": f"stub.key:{key}"}).json()["data"]
    stored = {job["id"] for job in found}
    if len(found) == 1 and answered == stored:
        return []
    return [f"key {key}: {len(found)} jobs, answers {sorted(answered)[:3]}"]
