"""Times GET /v1/jobs over real HTTP with 100 and with 100,000 jobs, on SQLite and Postgres.

    python -m benchmarks.list_jobs [--rows 100000] [--calls 40]

Rows are inserted in bulk: 60 % succeeded, a few in each other state, names mostly unique, labels
common (`env:prod`), rare (`needle:yes`, 20 jobs among the oldest) and disjoint (`half:old` and the
state of the newer half). Prints the median of each call and the ratio between the two sizes.
"""

import argparse
import statistics
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import httpx
from pydantic import SecretStr
from sqlalchemy import insert, text

from service.contract.spec import SPEC_VERSION, JobSpec
from service.settings import Settings
from service.store import schema
from service.store.database import Database
from service.store.models import JobLabelRow, JobRow
from tests.api.conftest import running
from tests.support import services

SPEC = JobSpec.model_validate(
    {
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data"},
    }
).model_dump(mode="json")
NEWEST = datetime(2026, 1, 1, tzinfo=UTC)
APART = timedelta(seconds=60)
BATCH = 5000


def job_id(created: datetime, number: int) -> str:
    return f"job-{int(created.timestamp()) * 10**9:016x}{number:016x}"


def job(number: int, rows: int) -> tuple[dict[str, Any], list[dict[str, str]]]:
    """Job `number` of `rows`, 0 the oldest, and its labels."""
    created = NEWEST - APART * (rows - number)
    old = number < rows // 2
    state = "succeeded" if number % 10 < 6 else "failed" if not old else "cancelled"
    if number < 20:
        state = "paused"
    identity = job_id(created, number)
    labels = {"env": "prod", "half": "old" if old else "new"}
    if number < 20:
        labels["needle"] = "yes"
    row = {
        "id": identity,
        "name": f"run-{number}" if number % 2 else "nightly",
        "task": "rare-task" if number < 20 else "question-answering",
        "spec": SPEC,
        "spec_version": SPEC_VERSION,
        "metadata_": labels,
        "created_at": created,
        "updated_at": created,
        "state": state,
        "stage": "publish",
        "last_metrics": {"loss": 0.5},
        "results": {},
        "ended_at": created,
        "queue": "cpu",
        "priority": 5,
        "queued_at": created,
        "not_before": created,
        "next_publish_at": created,
        "max_retries": 3,
        "tracking_final": True,
    }
    return row, [{"key": k, "value": v, "job_id": identity} for k, v in labels.items()]


def fill(database: Database, rows: int) -> None:
    for start in range(0, rows, BATCH):
        made = [job(number, rows) for number in range(start, min(rows, start + BATCH))]
        with database.write() as session:
            session.execute(insert(JobRow), [row for row, _ in made])
            session.execute(insert(JobLabelRow), [label for _, labels in made for label in labels])
    analyze(database)


def analyze(database: Database) -> None:
    """Postgres's autovacuum does this a minute after many inserts; SQLite never does."""
    if database.engine.dialect.name == "postgresql":
        with database.engine.connect() as connection:
            connection.execution_options(isolation_level="AUTOCOMMIT").execute(text("ANALYZE"))


def queries(rows: int) -> dict[str, dict[str, Any]]:
    middle = rows // 2
    then = NEWEST - APART * (rows - middle)
    day = timedelta(minutes=20)
    return {
        "first page": {},
        "first page, 100 rows": {"limit": 100},
        "deep page": {"after": job_id(then, middle)},
        "state, common": {"state": "succeeded"},
        "state, rare": {"state": "paused"},
        "state, none": {"state": "pausing"},
        "two states": {"state": ["failed", "cancelled"]},
        "rare or none": {"state": ["paused", "running"]},
        "task, common": {"task": "question-answering"},
        "task, rare": {"task": "rare-task"},
        "name, common": {"name": "nightly"},
        "name, one": {"name": "run-1"},
        "label, common": {"metadata": "env:prod"},
        "label, rare": {"metadata": "needle:yes"},
        "label, none": {"metadata": "needle:no"},
        "two labels": {"metadata": ["env:prod", "needle:yes"]},
        "created after": {"created_after": then.isoformat()},
        "created before": {"created_before": then.isoformat()},
        "created, narrow": {
            "created_after": then.isoformat(),
            "created_before": (then + day).isoformat(),
        },
        "narrow and state": {
            "created_after": then.isoformat(),
            "created_before": (then + day).isoformat(),
            "state": "succeeded",
        },
        "common state, rare label": {"state": "succeeded", "metadata": "needle:yes"},
        "rare state, common label": {"state": "paused", "metadata": "env:prod"},
        "common state, rare task": {"state": "succeeded", "task": "rare-task"},
        "common name, rare state": {"name": "nightly", "state": "paused"},
        "disjoint state and label": {"state": "failed", "metadata": "half:old"},
        "disjoint labels": {"metadata": ["half:old", "half:new"]},
        "all, none left": {
            "state": "failed",
            "task": "question-answering",
            "name": "nightly",
            "metadata": "half:old",
        },
    }


def measure(url: str, rows: int, calls: int) -> dict[str, float]:
    """Query → median milliseconds."""
    found = {}
    with httpx.Client(base_url=url, timeout=60) as client:
        for name, query in queries(rows).items():
            times = []
            for number in range(calls + 3):
                started = time.perf_counter()
                client.get("/v1/jobs", params=query).raise_for_status()
                if number >= 3:
                    times.append((time.perf_counter() - started) * 1000)
            found[name] = statistics.median(times)
    return found


@contextmanager
def empty_database(kind: str, folder: Path) -> Iterator[str]:
    if kind == "sqlite":
        yield f"sqlite:///{folder / 'finetune.db'}"
        return
    with services.postgres_database(services.find_postgres()) as url:
        yield url


def run(kind: str, rows: int, calls: int) -> dict[str, float]:
    with tempfile.TemporaryDirectory() as name, empty_database(kind, Path(name)) as url:
        database = Database(url)
        schema.upgrade(database.engine)
        fill(database, rows)
        settings = Settings(
            home=Path(name), database_url=SecretStr(url), auth="off", log_level="ERROR"
        )
        try:
            with running(settings) as base:
                return measure(base, rows, calls)
        finally:
            database.dispose()


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=100_000)
    parser.add_argument("--calls", type=int, default=40)
    parser.add_argument("--kinds", nargs="+", default=["sqlite", "postgres"])
    options = parser.parse_args()
    for kind in options.kinds:
        small = run(kind, 100, options.calls)
        large = run(kind, options.rows, options.calls)
        print(f"\n{kind}: median ms of {options.calls} calls")
        print(f"{'GET /v1/jobs':28}{'100 rows':>12}{f'{options.rows:,} rows':>16}{'ratio':>8}")
        for name, value in small.items():
            print(f"{name:28}{value:12.1f}{large[name]:16.1f}{large[name] / value:8.2f}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
