"""Live streams against polling: the same number of clients of one API process, one job.

    python -m benchmarks.watchers [--clients 100 500 2000] [--seconds 8] [--poll 1]

The job has an event each 0.37 s. Prints for each number of clients how many events a second arrive
at all of them, the time from the commit of an event to its arrival, the processor seconds a second
and the memory of the API, its SELECTs a second, and for streams how many of them it makes a tick.
Then how many clients missed an event or received one twice, and how many had no connection or lost
it. Polling clients ask for `events?after=` once in `--poll` seconds. Every client has its own
connection, so `ulimit -n` must be twice their number and some hundreds.
"""

import argparse
import asyncio
import json
import math
import re
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import psutil
import uvicorn
from pydantic import SecretStr
from sqlalchemy import event

from service.api import limits
from service.api.app import create_app
from service.api.server import options
from service.settings import Settings
from service.store import jobs, schema
from service.store.database import Database
from service.store.models import JobRow
from tests.api.factories import add_job
from tests.support import services

READS_FILE = "reads"
EVENTS_EVERY = 0.37
CONNECT_SECONDS = 40.0


def settings_of(home: Path, url: str) -> Settings:
    return Settings(
        home=home,
        auth="off",
        database_url=SecretStr(url),
        redis_url=SecretStr("redis://127.0.0.1:1/0"),
        max_connections=6000,
        log_level="WARNING",
    )


def serve(home: Path, url: str, port: int) -> None:
    """In a process of its own; writes five times a second how many SELECTs and ticks there were."""
    settings = settings_of(home, url)
    limits.MOST_REQUESTS = 4000  # type: ignore[misc]
    app = create_app(settings)
    count = 0

    def counted(_connection: object, _cursor: object, statement: str, *_: object) -> None:
        nonlocal count
        count += statement.startswith("SELECT")

    event.listen(app.state.services.database.engine, "before_cursor_execute", counted)

    async def run() -> None:
        server = uvicorn.Server(uvicorn.Config(app, port=port, **options(settings)))
        task = asyncio.create_task(server.serve())
        while not task.done():
            temporary = home / f"{READS_FILE}.new"
            temporary.write_text(f"{count} {app.state.feed.reads}")
            temporary.replace(home / READS_FILE)
            await asyncio.sleep(0.2)

    asyncio.run(run())


@dataclass
class Seen:
    """What all clients have received."""

    committed: dict[int, float] = field(default_factory=dict)
    delays: list[float] = field(default_factory=list)
    numbers: list[list[int]] = field(default_factory=list)
    unconnected: int = 0
    """Clients that have received nothing yet."""
    all_connected: asyncio.Event = field(default_factory=asyncio.Event)

    def connect(self) -> None:
        self.unconnected -= 1
        if not self.unconnected:
            self.all_connected.set()

    def receive(self, mine: list[int], number: int, at: float) -> None:
        mine.append(number)
        if number in self.committed:
            self.delays.append(at - self.committed[number])


Client = Callable[[int, str, Seen, list[int], float], Coroutine[Any, Any, None]]


async def watch(port: int, path: str, seen: Seen, mine: list[int], _poll: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    writer.write(f"GET {path}/stream HTTP/1.1\r\nHost: localhost\r\n\r\n".encode())
    try:
        await reader.readuntil(b"retry:")
        seen.connect()
        while line := await reader.readline():
            if line.startswith(b"id: "):
                seen.receive(mine, int(line[4:]), time.perf_counter())
    finally:
        writer.close()


async def poll(port: int, path: str, seen: Seen, mine: list[int], seconds: float) -> None:
    reader, writer = await asyncio.open_connection("127.0.0.1", port)
    last, is_first = 0, True
    try:
        while True:
            began = time.perf_counter()
            request = f"GET {path}?after={last} HTTP/1.1\r\nHost: localhost\r\n\r\n"
            writer.write(request.encode())
            head = await reader.readuntil(b"\r\n\r\n")
            length = re.search(rb"content-length: (\d+)", head.lower())
            if length is None or b" 200 " not in head:
                raise RuntimeError(head.decode())
            page = json.loads(await reader.readexactly(int(length[1])))
            if is_first:
                seen.connect()
            is_first = False
            for each in page["data"]:
                last = each["seq"]
                seen.receive(mine, last, time.perf_counter())
            await asyncio.sleep(max(0.0, seconds - (time.perf_counter() - began)))
    finally:
        writer.close()


def append(database: Database, job_id: str, number: int) -> None:
    with database.write() as session:
        row = session.get_one(JobRow, job_id, with_for_update=True)
        jobs.append_event(session, row, "notice", {"n": number}, jobs.clock(session))


@dataclass
class Usage:
    """Of the API until now."""

    at: float
    cpu: float
    reads: int
    ticks: int

    @classmethod
    def now(cls, server: psutil.Process, home: Path) -> "Usage":
        reads, ticks = (home / READS_FILE).read_text().split()
        cpu = float(sum(server.cpu_times()[:2]))
        return cls(time.perf_counter(), cpu, int(reads), int(ticks))


async def measure(
    client: Client,
    clients: int,
    port: int,
    server: psutil.Process,
    home: Path,
    url: str,
    wanted: argparse.Namespace,
) -> str:
    database, seen = Database(url), Seen(unconnected=clients)
    job_id = add_job(database)
    before = server.memory_info().rss
    path = f"/v1/jobs/{job_id}/events"
    tasks: list[asyncio.Task[None]] = []
    for number in range(clients):
        seen.numbers.append([])
        tasks.append(asyncio.create_task(client(port, path, seen, seen.numbers[-1], wanted.poll)))
        if number % 20 == 19:
            await asyncio.sleep(0.03)
    with suppress(TimeoutError):
        await asyncio.wait_for(seen.all_connected.wait(), CONNECT_SECONDS)
    await asyncio.sleep(1)
    began = Usage.now(server, home)
    number = 0
    while time.perf_counter() - began.at < wanted.seconds:
        number += 1
        await asyncio.to_thread(append, database, job_id, number)
        seen.committed[number] = time.perf_counter()
        await asyncio.sleep(EVENTS_EVERY)
    ended = Usage.now(server, home)
    arrived = sum(map(len, seen.numbers)) / (ended.at - began.at)
    memory = server.memory_info().rss
    await asyncio.sleep(max(2.0, 2 * wanted.poll))
    wrong = sum(each != list(range(1, number + 1)) for each in seen.numbers)
    failed = sum(task.done() for task in tasks) + seen.unconnected
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
    await asyncio.sleep(1)
    database.dispose()
    return _line(client.__name__, clients, began, ended, seen.delays, arrived) + (
        f"{memory / 2**20:5.0f} MiB ({(memory - before) / clients / 1024:.0f} KiB a client)  "
        f"{wrong} without each event once  {failed} failed"
    )


def _line(
    name: str, clients: int, began: Usage, ended: Usage, delays: list[float], arrived: float
) -> str:
    seconds, ticks = ended.at - began.at, ended.ticks - began.ticks
    parts = statistics.quantiles(delays, n=100) if len(delays) > 1 else [math.nan] * 99
    p50, p95, p99 = (1000 * parts[place - 1] for place in (50, 95, 99))
    reads = ended.reads - began.reads
    of_ticks = f", {reads / ticks:.1f} a tick" if ticks and name == "watch" else ""
    return (
        f"{name:5} {clients:5} clients  {arrived:6.0f} events/s  "
        f"p50 {p50:5.0f}  p95 {p95:5.0f}  p99 {p99:5.0f} ms  "
        f"cpu {(ended.cpu - began.cpu) / seconds:4.2f} s/s  "
        f"{reads / seconds:6.1f} reads/s{of_ticks}  "
    )


def _allow_files(clients: int) -> None:
    """As many open files as the system lets this process have, and its child."""
    _, most = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (most, most))
    needed = 2 * clients + 500
    if most != resource.RLIM_INFINITY and most < needed:
        raise SystemExit(f"{clients} clients need `ulimit -n {needed}`; here it is {most} at most")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--clients", type=int, nargs="+", default=[100, 500, 2000])
    parser.add_argument("--seconds", type=float, default=8)
    parser.add_argument("--poll", type=float, default=1)
    parser.add_argument("--serve", nargs=3, help=argparse.SUPPRESS)
    wanted = parser.parse_args()
    _allow_files(max(wanted.clients))
    if wanted.serve:
        serve(Path(wanted.serve[0]), wanted.serve[1], int(wanted.serve[2]))
        return 0
    with tempfile.TemporaryDirectory() as folder:
        url, port = f"sqlite:///{folder}/db.sqlite", services.free_port()
        database = Database(url)
        schema.upgrade(database.engine)
        command = [sys.executable, "-m", "benchmarks.watchers", "--serve", folder, url, str(port)]
        with subprocess.Popen(command) as process:
            try:
                services.wait_until(lambda: answers(port), 40, "the API")
                server = psutil.Process(process.pid)
                for clients in wanted.clients:
                    for client in (watch, poll):
                        home = Path(folder)
                        work = measure(client, clients, port, server, home, url, wanted)
                        print(asyncio.run(work), flush=True)
            finally:
                process.terminate()
    return 0


def answers(port: int) -> bool:
    try:
        return httpx.get(f"http://127.0.0.1:{port}/health/live").is_success
    except httpx.TransportError:
        return False


if __name__ == "__main__":
    sys.exit(main())
