"""Times requests to this checkout's API against those to another checkout's, each with a key.

    python -m benchmarks.releases FOLDER [--rounds 30] [--seconds 0.5] [--clients 8]
                                  [--databases sqlite postgres]

FOLDER: the other checkout, which this interpreter can run. Each side has one API process and a
database of its own with as many jobs. Short runs take turns, so that other work on the machine
meets both. Prints the medians of the rounds' ratios: processor time of the API process for each
request, which other work changes little, and requests per second.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import psutil

from benchmarks.api import SPEC, same, serving
from benchmarks.http_load import Connection, encode, load
from benchmarks.list_jobs import empty_database
from tests.support import services

HERE = Path(__file__).resolve().parents[1]
# -P: not the code of the folder that this runs in.
FINETUNE = [sys.executable, "-P", "-m", "service.cli"]
FIRST_JOBS = 100


@dataclass
class Side:
    name: str
    url: str
    key: str
    process: psutil.Process
    job: str = ""

    def request(self, method: str, path: str, body: object = None) -> bytes:
        head, blank, content = encode(method, path, body).partition(b"\r\n\r\n")
        return head + f"\r\nAuthorization: Bearer {self.key}".encode() + blank + content

    def fill(self) -> None:
        connection = Connection(self.url)
        for _ in range(FIRST_JOBS):
            status, body = connection.send(self.request("POST", "/v1/jobs", SPEC))
            assert status == 201, body
        self.job = json.loads(body)["id"]
        connection.close()

    def cpu_seconds(self) -> float:
        times = self.process.cpu_times()
        return times.user + times.system


@dataclass(frozen=True)
class Cost:
    rate: float
    cpu_ms: float


@contextmanager
def side(name: str, checkout: Path, kind: str, broker: str) -> Iterator[Side]:
    with tempfile.TemporaryDirectory() as home, empty_database(kind, Path(home)) as database:
        environment = os.environ | {
            "PYTHONPATH": str(checkout),
            "FINETUNE_HOME": home,
            "FINETUNE_DATABASE_URL": database,
            "FINETUNE_REDIS_URL": broker,
            "FINETUNE_LOG_LEVEL": "WARNING",
        }
        make_key = [*FINETUNE, "keys", "create", "benchmark", "--json"]
        made = subprocess.run(make_key, env=environment, check=True, stdout=subprocess.PIPE)
        with serving([*FINETUNE, "api"], environment, "/health/live") as (url, process):
            one = Side(name, url, json.loads(made.stdout)["key"], psutil.Process(process.pid))
            one.fill()
            yield one


def cost(one: Side, request: bytes, status: int, options: argparse.Namespace) -> Cost:
    before = one.cpu_seconds()
    found = load(
        one.url, same(request), status=status, clients=options.clients, seconds=options.seconds
    )
    return Cost(found.rate, (one.cpu_seconds() - before) * 1000 / len(found.latencies))


CASES: dict[str, tuple[Callable[[Side], bytes], int]] = {
    "POST": (lambda one: one.request("POST", "/v1/jobs", SPEC), 201),
    "GET a job": (lambda one: one.request("GET", f"/v1/jobs/{one.job}"), 200),
    "GET the list": (lambda one: one.request("GET", "/v1/jobs"), 200),
}


def compare(name: str, ours: Side, other: Side, options: argparse.Namespace) -> None:
    make_request, status = CASES[name]
    requests = {one.name: make_request(one) for one in (ours, other)}
    found: dict[str, list[Cost]] = {ours.name: [], other.name: []}
    for number in range(options.rounds + 1):
        for one in (ours, other) if number % 2 else (other, ours):
            took = cost(one, requests[one.name], status, options)
            if number:  # The first round fills caches.
                found[one.name].append(took)
    pairs = list(zip(found[ours.name], found[other.name], strict=True))
    cpu = statistics.median(a.cpu_ms / b.cpu_ms for a, b in pairs)
    rate = statistics.median(b.rate / a.rate for a, b in pairs)
    least = [min(one.cpu_ms for one in each) for each in found.values()]
    most = [max(one.rate for one in each) for each in found.values()]
    print(
        f"{name:14} processor time {cpu:.3f} (least {least[0]:.2f} : {least[1]:.2f} ms), "
        f"time {rate:.3f} (most {most[0]:.0f} : {most[1]:.0f}/s)",
        flush=True,
    )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--rounds", type=int, default=30)
    parser.add_argument("--seconds", type=float, default=0.5)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"])
    parser.add_argument("--cases", nargs="+", choices=CASES, default=list(CASES))
    options = parser.parse_args()
    with services.broker(services.valkey_binary()) as broker:
        for kind in options.databases:
            print(f"{kind}: {options.rounds} rounds, {options.clients} clients; ours : the other's")
            with (
                side("ours", HERE, kind, broker) as ours,
                side("other", options.folder.resolve(), kind, broker) as other,
            ):
                for name in options.cases:
                    compare(name, ours, other, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
