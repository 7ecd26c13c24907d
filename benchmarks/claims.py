"""Times a claim, and the API's reads, with 100 jobs in the queue and with 10,000.

    python -m benchmarks.claims [--rows 10000] [--rounds 11] [--calls 20] [--kinds sqlite postgres]

For each kind there are two databases, each with its own uvicorn. A round makes `calls` calls of
each sort on both, in turn, and each call leaves the length of the queue unchanged. Prints the
median of the rounds' medians, and the median of the rounds' ratios with their range.
"""

import argparse
import json
import statistics
import sys
import tempfile
import time
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from pydantic import SecretStr
from sqlalchemy import delete, select

from benchmarks.http_load import Connection, encode
from benchmarks.list_jobs import SPEC, analyze, empty_database
from service.contract.routing import CPU_QUEUE
from service.contract.spec import JobSpec
from service.settings import Settings
from service.store import claims, jobs, schema
from service.store.database import Database
from service.store.models import JobRow
from tests.api.conftest import running

FEW = 100
JOB_SPEC = JobSpec.model_validate(SPEC)
Call = Callable[[], float]


class Queue:
    """A database with this many queued jobs, and its API; times in ms."""

    def __init__(self, database: Database, url: str, rows: int) -> None:
        self.database = database
        self._connection = Connection(url)
        with database.write() as session:
            for _ in range(rows):
                jobs.insert(session, jobs.new_job_id(), JOB_SPEC)
        analyze(database)
        with database.read() as session:
            self._waiting = deque(session.scalars(select(JobRow.id).order_by(JobRow.id)))
        self.calls: dict[str, Call] = {
            "claim of the first": self._claim,
            "GET the list": lambda: self._get("/v1/jobs")[0],
            "GET the list, queued": lambda: self._get("/v1/jobs?state=queued")[0],
            "GET the last job": lambda: self._get(f"/v1/jobs/{self._waiting[-1]}")[0],
            "POST": self._post,
        }

    def _claim(self) -> float:
        job_id = self._waiting.popleft()
        begun = time.perf_counter()
        with self.database.write() as session:
            claim = claims.claim(
                session, job_id, "benchmark", queues=[CPU_QUEUE], gpus=(), lease_seconds=60
            )
        taken = time.perf_counter() - begun
        assert claim is not None, job_id
        new = jobs.new_job_id()
        with self.database.write() as session:
            session.execute(delete(JobRow).where(JobRow.id == job_id))
            jobs.insert(session, new, JOB_SPEC)
        self._waiting.append(new)
        return taken * 1000

    def _get(self, path: str) -> tuple[float, bytes]:
        return self._send(encode("GET", path), 200)

    def _post(self) -> float:
        taken, body = self._send(encode("POST", "/v1/jobs", SPEC), 201)
        with self.database.write() as session:
            session.execute(delete(JobRow).where(JobRow.id == json.loads(body)["id"]))
        return taken

    def _send(self, request: bytes, expected: int) -> tuple[float, bytes]:
        begun = time.perf_counter()
        status, body = self._connection.send(request)
        taken = time.perf_counter() - begun
        assert status == expected, body
        return taken * 1000, body


@contextmanager
def queue(kind: str, rows: int) -> Iterator[Queue]:
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        url = parts.enter_context(empty_database(kind, folder))
        database = Database(url)
        parts.callback(database.dispose)
        schema.upgrade(database.engine)
        settings = Settings(home=folder, database_url=SecretStr(url), auth="off", log_level="ERROR")
        yield Queue(database, parts.enter_context(running(settings)), rows)


def compare(kind: str, few: Queue, many: Queue, options: argparse.Namespace) -> None:
    print(f"\n{kind}: median ms of {options.rounds} x {options.calls} calls")
    print(f"{'':24}{f'{FEW:,} queued':>14}{f'{options.rows:,} queued':>16}  ratio (range)")
    for name in few.calls:
        pairs = []
        for number in range(options.rounds + 1):
            order = (few, many) if number % 2 else (many, few)
            took = {one: [one.calls[name]() for _ in range(options.calls)] for one in order}
            if number:  # The first round fills caches.
                pairs.append((statistics.median(took[few]), statistics.median(took[many])))
        ratios = sorted(large / small for small, large in pairs)
        small, large = (statistics.median(column) for column in zip(*pairs, strict=True))
        print(
            f"{name:24}{small:14.2f}{large:16.2f}  {statistics.median(ratios):.2f} "
            f"({ratios[0]:.2f} to {ratios[-1]:.2f})",
            flush=True,
        )


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rows", type=int, default=10_000)
    parser.add_argument("--rounds", type=int, default=11)
    parser.add_argument("--calls", type=int, default=20)
    parser.add_argument("--kinds", nargs="+", default=["sqlite", "postgres"])
    options = parser.parse_args()
    for kind in options.kinds:
        with queue(kind, FEW) as few, queue(kind, options.rows) as many:
            compare(kind, few, many, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
