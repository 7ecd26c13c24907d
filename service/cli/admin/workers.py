"""`finetune workers`: the live workers, what they have and what they do."""

from collections.abc import Iterator
from datetime import UTC, datetime
from itertools import groupby
from typing import Any, Final

from service.cli.terminal import output
from service.cli.terminal.client import Client, Json
from service.cli.terminal.layout import labelled

_GIB: Final = 1024**3
_UNITS: Final = (("d", 86400), ("h", 3600), ("min", 60))


def show_workers(*, json: output.AsJson = False) -> None:
    """Live workers: devices, queues, jobs, when they were last seen, what their doctor found."""
    with Client.from_environment() as client:
        answer = client.get("/v1/workers")
    if json:
        output.print_json(answer)
        return
    if not answer["data"]:
        output.note("No worker is alive. Start one with `finetune up` or `finetune worker`.")
    now = datetime.now(UTC)
    for worker in answer["data"]:
        output.print_line(worker["id"])
        output.print_lines(labelled(_rows(worker, now)))


def _rows(worker: Json, now: datetime) -> Iterator[tuple[str, str]]:
    yield "host", f"{worker['hostname']}, process {worker['pid']}"
    yield "devices", described(worker["devices"])
    yield "queues", ", ".join(worker["queues"])
    yield "jobs", ", ".join(map(_job, worker["jobs"])) or "none"
    seen, started = (_ago(worker[name], now) for name in ("last_seen_at", "started_at"))
    yield "seen", f"{seen} ago, started {started} ago, version {worker['version']}"
    yield "doctor", _doctor(worker["doctor"])


def _job(job: Json) -> str:
    name = f" {job['name']}" if job["name"] else ""
    return f"{job['id']}{name} ({job['stage']})"


def described(devices: list[Json]) -> str:
    """`2 x NVIDIA H100 80 GiB`, or `2 CPU cores (AMD EPYC), no GPU`; and what is wrong with any."""
    texts = [
        f"{count} x {text}" if (count := len(list(same))) > 1 else text
        for text, same in groupby(_device(device) for device in devices)
    ]
    problems = [str(device["problem"]) for device in devices if device.get("problem")]
    return "; ".join([", ".join(texts) or "none", *dict.fromkeys(problems)])


def _device(device: Json) -> str:
    if device.get("type") == "cpu":
        cores = device.get("cores") or "?"
        return f"{cores} CPU core{'' if cores == 1 else 's'} ({device.get('name')}), no GPU"
    memory = device.get("memory_bytes")
    size = f" {memory / _GIB:.0f} GiB" if memory else ""
    return f"{device.get('name') or 'GPU'}{size}{' (MIG)' if device.get('mig') else ''}"


def _ago(time: str, now: datetime) -> str:
    seconds = max(0, int((now - datetime.fromisoformat(time)).total_seconds()))
    for unit, size in _UNITS:
        if seconds >= size:
            return f"{seconds // size} {unit}"
    return f"{seconds} s"


def _doctor(doctor: Any) -> str:
    """The status, and each finding that is worse than ok."""
    if doctor is None:
        return "not run yet"
    worse = [
        f"{finding['name']}: {finding['reason'] or finding['summary']}"
        for finding in doctor["findings"]
        if finding["status"] in ("warning", "failed")
    ]
    return "; ".join([str(doctor["status"]), *worse])
