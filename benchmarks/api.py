"""Times POST and GET of a job against a bare FastAPI route with the same INSERT or SELECT.

    python -m benchmarks.api [--pairs 5] [--seconds 3] [--clients 8] [--databases sqlite postgres]

Each side is one uvicorn process, started as `finetune api` starts it, on one database and with a
broker, so that every POST also sends the job's message. The sides run in turn. Prints rate and
latencies of each run, then the median ratio with its range. `watchers`: as many more connections
poll a job's events at the same time.
"""

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from benchmarks.http_load import Connection, Load, Request, encode, load
from benchmarks.list_jobs import empty_database
from service.store import schema
from service.store.database import Database
from tests.support import services

SPEC = {
    "name": "benchmark",
    "task": {"type": "question-answering", "version_2_with_negative": True},
    "model": {"name_or_path": "org/model"},
    "dataset": {"source": "hub", "name": "org/data"},
    "training": {"num_train_epochs": 2, "learning_rate": 3e-5, "bf16": True},
    "metadata": {"team": "search"},
}
API = [str(Path(sys.executable).with_name("finetune")), "api"]
BARE = [sys.executable, "-m", "uvicorn", "--factory", "benchmarks.bare_api:create_app"]
BARE += ["--no-access-log", "--log-level", "warning", "--host", "127.0.0.1"]


@contextmanager
def serving(
    command: list[str], environment: dict[str, str], path: str
) -> Iterator[tuple[str, subprocess.Popen[bytes]]]:
    """The URL and process of a server that answers at `path`; it ends with the block."""
    port = services.free_port()
    url = f"http://127.0.0.1:{port}"
    process = subprocess.Popen([*command, "--port", str(port)], env=environment)

    def answers() -> bool:
        try:
            connection = Connection(url)
        except OSError:
            return False
        try:
            return connection.send(encode("GET", path))[0] < 500
        finally:
            connection.close()

    try:
        services.wait_until(answers, 30, command[-1])
        yield url, process
    finally:
        process.terminate()
        process.wait(30)


def same(request: bytes) -> Request:
    return lambda: request


def compare(ours: list[Load], bare: list[Load], what: str) -> None:
    ratios = sorted(a.rate / b.rate for a, b in zip(ours, bare, strict=True))
    median = statistics.median(ratios)
    print(f"{what}: {median:.2f} of the bare route ({ratios[0]:.2f} to {ratios[-1]:.2f})\n")


def measure(url: str, bare_url: str, options: argparse.Namespace) -> None:
    connection = Connection(url)
    job = json.loads(connection.send(encode("POST", "/v1/jobs", SPEC))[1])["id"]
    connection.close()
    cases = {
        "POST": (encode("POST", "/v1/jobs", SPEC), encode("POST", "/bare", SPEC), 201),
        "GET": (encode("GET", f"/v1/jobs/{job}"), encode("GET", f"/bare/{job}"), 200),
    }
    for name, (our_request, bare_request, status) in cases.items():
        ours: list[Load] = []
        bare: list[Load] = []
        for number in range(options.pairs):
            runs = [(url, our_request, ours, "ours"), (bare_url, bare_request, bare, "bare")]
            for base, request, found, who in runs if number % 2 else reversed(runs):
                one = load(
                    base,
                    same(request),
                    status=status,
                    clients=options.clients,
                    seconds=options.seconds,
                )
                found.append(one)
                print(f"{name:5}{who:6}{one}", flush=True)
        compare(ours, bare, name)
    events = same(encode("GET", f"/v1/jobs/{job}/events"))
    watchers = load(url, events, status=200, clients=options.clients * 4, seconds=options.seconds)
    print(f"{options.clients * 4} watchers of a job's events: {watchers}\n")


def run(kind: str, options: argparse.Namespace) -> None:
    print(f"{kind}: {options.clients} clients, {options.seconds:.0f} s a run")
    with ExitStack() as parts:
        folder = Path(parts.enter_context(tempfile.TemporaryDirectory()))
        database_url = parts.enter_context(empty_database(kind, folder))
        database = Database(database_url)
        schema.upgrade(database.engine)
        database.dispose()
        environment = os.environ | {
            "FINETUNE_HOME": str(folder),
            "FINETUNE_AUTH": "off",
            "FINETUNE_DATABASE_URL": database_url,
            "FINETUNE_REDIS_URL": parts.enter_context(services.broker(services.valkey_binary())),
            "FINETUNE_LOG_LEVEL": "WARNING",
        }
        url, _ = parts.enter_context(serving(API, environment, "/health/live"))
        bare_url, _ = parts.enter_context(serving(BARE, environment, "/bare/none"))
        measure(url, bare_url, options)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--seconds", type=float, default=3)
    parser.add_argument("--clients", type=int, default=8)
    parser.add_argument("--databases", nargs="+", default=["sqlite", "postgres"])
    options = parser.parse_args()
    for kind in options.databases:
        run(kind, options)
    return 0


if __name__ == "__main__":
    sys.exit(main())
