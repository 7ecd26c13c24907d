"""Real worker processes with a database and a broker."""

import os
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest
import redis
from sqlalchemy import select

from service.jobs.dispatch import Dispatcher
from service.jobs.reconciler import Reconciler
from service.settings import Settings
from service.store.database import Database
from service.store.tables.workers import WorkerRow
from tests.support import stages, warm_processes
from tests.support.factories import make_spec, submit
from tests.support.servers import services
from tests.support.store.job_rows import get
from tests.support.warm_processes import Process

SECONDS = 30


class Stack:
    """Database, broker, workers as processes, and a reconciler that tests run step by step."""

    def __init__(self, database: Database, database_url: str, broker_url: str, home: Path) -> None:
        self.database = database
        self.broker_url = broker_url
        self.values = {
            "home": str(home),
            "database_url": database_url,
            "redis_url": broker_url,
            "beat_seconds": "0.5",
            "poll_seconds": "0.2",
            "lease_seconds": "2",
            "kill_seconds": "1.5",
            "stop_grace_seconds": "2",
            "retry_backoff_seconds": "0.1",
            "republish_seconds": "1",
            "doctor_at_start": "0",
            "sandbox_read": str(Path(stages.__file__).parent),
            "warm_start": "0",  # the stub imports nothing that takes long
        }
        self.settings = Settings(**self.values)  # type: ignore[arg-type]
        self.dispatcher = Dispatcher(self.settings)
        self.reconciler = Reconciler(database, self.dispatcher, self.settings)
        self.processes: list[Process] = []
        self.log = home / "worker.log"
        home.mkdir()

    def start_worker(self, *options: str, module: str = "tests.support.workers.worker") -> Process:
        known = len(self.workers())
        environment = {name: v for name, v in os.environ.items() if "FINETUNE" not in name}
        environment |= {f"FINETUNE_{name.upper()}": value for name, value in self.values.items()}
        process = warm_processes.of_all_tests().start(module, options, environment, self.log)
        self.processes.append(process)
        services.wait_until(lambda: len(self.workers()) > known, SECONDS, "the worker")
        return process

    def workers(self) -> list[WorkerRow]:
        with self.database.read() as session:
            return list(session.scalars(select(WorkerRow)))

    def submit(self, **spec: object) -> str:
        return submit(self.database, self.dispatcher, make_spec(**spec)).job_id

    def wait(self, job_id: str, check: Callable[[], bool], what: str) -> None:
        """Run the reconciler until the check holds."""

        def step() -> bool:
            self.reconciler.step()
            return check()

        try:
            services.wait_until(step, SECONDS, what, most_pause=0.1)
        except TimeoutError:
            pytest.fail(
                f"{what}: {get(self.database, job_id).state}\n{self.log.read_text()[-6000:]}"
            )

    def wait_for_state(self, job_id: str, *states: str) -> None:
        self.wait(job_id, lambda: get(self.database, job_id).state in states, f"{states}")

    def wait_for_stage(self, job_id: str, epoch: int) -> Path:
        """Wait until the stub of this epoch runs; its attempt's folder."""
        folder = self.settings.workspace(job_id) / "attempts" / str(epoch)
        self.wait(job_id, (folder / "environment").exists, f"attempt {epoch}")
        return folder

    def stop(self) -> None:
        for process in self.processes:
            if process.poll() is None:
                process.terminate()
        for process in self.processes:
            try:
                process.wait(15)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.dispatcher.close()


@pytest.fixture
def stack(
    database: Database, database_url: str, broker_url: str, tmp_path: Path
) -> Iterator[Stack]:
    client = redis.Redis.from_url(broker_url)
    client.flushall()
    client.close()
    stack = Stack(database, database_url, broker_url, tmp_path / "home")
    yield stack
    stack.stop()


def descendants(process: Process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children(recursive=True)


def pool_of(process: Process) -> list[psutil.Process]:
    return psutil.Process(process.pid).children()
