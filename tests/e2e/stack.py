"""The whole service as a user runs it: API, reconciler and worker as processes of their own."""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

import httpx
import psutil

from tests.support import warm_processes
from tests.support.servers import services
from tests.support.warm_processes import Process, Warm

BIN = Path(sys.executable).parent
ENDED = ("succeeded", "failed", "cancelled")


class Part:
    """One process and everything that it started."""

    def __init__(self, name: str, arguments: list[str], process: Process, log: Path) -> None:
        self.name = name
        self.arguments = arguments
        self.process = process
        self._log = log

    def family(self) -> list[psutil.Process]:
        """The process and all its descendants that live now."""
        try:
            root = psutil.Process(self.process.pid)
            return [root, *root.children(recursive=True)]
        except psutil.NoSuchProcess:
            return []

    def stop(self, seconds: float = 30) -> None:
        """SIGTERM, then SIGKILL for whatever of the family is left."""
        family = self.family()
        if self.process.poll() is None:
            self.process.terminate()
        try:
            self.process.wait(seconds)
        finally:
            for process in family:
                with suppress(psutil.NoSuchProcess):  # it may have ended by now
                    process.kill()

    def kill(self) -> None:
        self.process.send_signal(signal.SIGKILL)
        self.process.wait(10)

    def stops(self) -> int:
        """How often it has asked a stage to stop."""
        return self._log.read_text(errors="replace").count("stage.stopping")

    def tail(self) -> str:
        return self._log.read_text(errors="replace")[-4000:]


class Stack:
    """Short leases, so that a lost worker is noticed within seconds.

    Its processes are forked from a warm one; `finetune up`, which the documentation's tests start,
    starts them as new interpreters.
    """

    worker_module = "worker"

    def __init__(self, home: Path, variables: Mapping[str, str]) -> None:
        self.home = home
        port = services.free_port()
        self.url = f"http://127.0.0.1:{port}"
        inherited = {k: v for k, v in os.environ.items() if not k.startswith(("FINETUNE_", "HF_"))}
        stubs = Path(__file__).resolve().parents[1] / "support" / "stages"
        self.env = inherited | {
            "FINETUNE_HOME": str(home),
            "FINETUNE_PORT": str(port),
            "FINETUNE_AUTH": "off",
            "FINETUNE_SANDBOX_READ": str(stubs),  # stages of the chaos tests
            "FINETUNE_LEASE_SECONDS": "6",
            "FINETUNE_BEAT_SECONDS": "1",
            "FINETUNE_KILL_SECONDS": "4",
            "FINETUNE_POLL_SECONDS": "0.5",
            "FINETUNE_RETRY_BACKOFF_SECONDS": "1",
            "FINETUNE_SYSTEM_METRICS_SECONDS": "0.25",
            "FINETUNE_DOCTOR_AT_START": "false",  # tests/doctor runs the same checks
            "OMP_NUM_THREADS": "1",
            **variables,
        }
        self.http = httpx.Client(base_url=self.url, timeout=30, verify=False)
        self.parts: dict[str, Part] = {}

    def start(self) -> None:
        self.start_part("migrate", ["service.cli", "migrate"])
        migrated = self.parts.pop("migrate")
        assert migrated.process.wait(60) == 0, migrated.tail()
        self.start_part("api", ["service.cli", "api"])
        self.start_part("reconciler", ["service.cli", "reconciler"])
        self.start_worker()
        services.wait_until(self._answers, 30, "the API")

    def start_worker(self, name: str = "worker") -> None:
        self.start_part(name, [self.worker_module, "--queues", "cpu,gpu"])

    def start_part(self, name: str, arguments: list[str]) -> None:
        """`arguments`: the module and its arguments."""
        log = self.home / f"{name}.log"
        module, *options = arguments
        process = self.warm().start(module, options, self.env, log)
        self.parts[name] = Part(name, arguments, process, log)

    def warm(self) -> Warm:
        """What its processes are forked from."""
        return warm_processes.of_all_tests()

    def stop(self) -> None:
        """The workers first: they give their jobs back while all else still runs."""
        for part in reversed(self.parts.values()):
            part.stop()
        self.http.close()

    def _answers(self) -> bool:
        try:
            return self.http.get("/health/live").status_code == 200
        except httpx.TransportError:
            return False

    # ---- what a user does ---------------------------------------------------------------------

    def upload(self, path: Path) -> str:
        with path.open("rb") as stream:
            answer = self.http.post(
                "/v1/files", files={"file": (path.name, stream)}, data={"purpose": "fine-tune"}
            )
        answer.raise_for_status()
        return str(answer.json()["id"])

    def submit(self, body: Mapping[str, Any]) -> str:
        answer = self.http.post("/v1/jobs", json=body)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        answer = self.http.get(f"/v1/jobs/{job_id}")
        answer.raise_for_status()
        page: dict[str, Any] = answer.json()
        return page

    def wait_for(
        self, job_id: str, reached: Callable[[dict[str, Any]], bool], seconds: float = 180
    ) -> dict[str, Any]:
        """The job's page once `reached`; fails at once when the job ends otherwise."""
        page: dict[str, Any] = {}

        def arrived() -> bool:
            nonlocal page
            page = self.job(job_id)
            if not reached(page) and page["state"] in ENDED:
                raise AssertionError(f"{json.dumps(page, indent=1)}\n{self.log(job_id)}")
            return reached(page)

        services.wait_until(arrived, seconds, f"job {job_id}", most_pause=0.2)
        return page

    def finish(self, job_id: str, state: str = "succeeded", seconds: float = 240) -> dict[str, Any]:
        return self.wait_for(job_id, lambda page: page["state"] == state, seconds)

    def log(self, job_id: str) -> str:
        path = self.home / "jobs" / job_id / "job.log"
        return path.read_text(errors="replace")[-4000:] if path.exists() else "(no log)"

    def pages(self, path: str) -> list[dict[str, Any]]:
        """All items of a paged list."""
        items: list[dict[str, Any]] = []
        after: Any = None
        while True:
            params = {"limit": 100} | ({"after": after} if after is not None else {})
            page = self.http.get(path, params=params).raise_for_status().json()
            items += page["data"]
            if not page["has_more"]:
                return items
            last = page["data"][-1]
            after = last["seq"] if "seq" in last else last["name"]


@contextmanager
def running(home: Path, kinds: str, variables: Mapping[str, str]) -> Iterator[Stack]:
    """A stack on a database and a broker of these kinds: "sqlite-valkey", "postgres-redis"."""
    database, _, broker = kinds.partition("-")
    find = services.valkey_binary if broker == "valkey" else services.redis_binary
    with ExitStack() as parts:
        urls = {"FINETUNE_REDIS_URL": parts.enter_context(services.broker(find()))}
        if database == "postgres":
            server = services.postgres_database(services.find_postgres())
            urls["FINETUNE_DATABASE_URL"] = parts.enter_context(server)
        stack = Stack(home, {**variables, **urls})
        parts.callback(stack.stop)
        stack.start()
        yield stack
