"""The service under attack; the harness restarts its processes, as an init system would."""

import os
import tempfile
import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, ExitStack, contextmanager
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import httpx
import psutil

import tests.support.stages as stubs_package
from chaos.rows import Scale
from chaos.stack.processes import MARK, marked
from chaos.stack.work import Material, Undisturbed, stub_undisturbed
from tests.e2e.stack import ENDED, Stack
from tests.support.servers import mlflow_server, services
from tests.support.warm_processes import Warm

DatabaseKind = Literal["sqlite", "postgres"]

INPUTS = "inputs"
LEASE_SECONDS = 3.0
_ANSWER_SECONDS = 60.0
# With other work on the machine, a job can take long.
JOB_SECONDS = 300.0


class FaultStack(Stack):
    """Several workers; any part may die, and `wait` and `request` restart it."""

    def __init__(
        self,
        home: Path,
        variables: Mapping[str, str],
        broker: services.BrokerServer,
        mlflow_uri: str | None,
        workers: int,
        *,
        reconcilers: int = 1,
        stubs: bool = False,
        gpus: bool = False,
    ) -> None:
        if stubs:
            self.worker_module = f"chaos.stack.stub_{'gpu_' if gpus else ''}worker"
            # A stub imports nothing that takes long.
            variables = {"FINETUNE_WARM_START": "false", **variables}
        self.mark = uuid.uuid4().hex
        # One of its own: what is forked shows the mark because this process has started with it.
        self._warm = Warm({**os.environ, MARK: self.mark})
        self.broker = broker
        self.mlflow_uri = mlflow_uri
        super().__init__(
            home,
            {
                MARK: self.mark,
                # Stages of tests/support/stages import one another.
                "PYTHONPATH": str(Path(stubs_package.__file__).parents[3]),
                "FINETUNE_STAGE_ENV": MARK,
                "FINETUNE_ALLOW_DEBUGGERS": "true",
                "FINETUNE_SANDBOX_READ": str(Path(stubs_package.__file__).parents[2]),
                "FINETUNE_REDIS_URL": broker.url,
                "FINETUNE_DATA_ROOTS": str(home / INPUTS),
                "FINETUNE_MODEL_ROOTS": str(home / INPUTS),
                "FINETUNE_LEASE_SECONDS": str(LEASE_SECONDS),
                "FINETUNE_BEAT_SECONDS": "0.5",
                "FINETUNE_KILL_SECONDS": "2",
                "FINETUNE_POLL_SECONDS": "0.2",
                "FINETUNE_DRAIN_GRACE_SECONDS": "10",
                "FINETUNE_STOP_GRACE_SECONDS": "5",
                "FINETUNE_REPUBLISH_SECONDS": "2",
                "FINETUNE_RETRY_BACKOFF_SECONDS": "0.1",
                # Several kills of the same job are the attack's doing.
                "FINETUNE_CRASH_LIMIT": "100",
                **({"FINETUNE_MLFLOW_URI": mlflow_uri} if mlflow_uri is not None else {}),
                **variables,
            },
        )
        self.workers = [f"worker-{number}" for number in range(workers)]
        self._reconcilers = reconcilers
        self._undisturbed: dict[str, Undisturbed] = {}

    @cached_property
    def material(self) -> Material:
        """Created on first use: an attack with stubs needs no torch."""
        folder = self.home / INPUTS
        folder.mkdir(exist_ok=True)
        return Material(folder)

    @property
    def database_url(self) -> str:
        """The SQLAlchemy URL, to read the tables."""
        return self.env.get("FINETUNE_DATABASE_URL", f"sqlite:///{self.home / 'finetune.db'}")

    # ---- processes ----------------------------------------------------------------------------

    def warm(self) -> Warm:
        return self._warm

    def stop(self) -> None:
        super().stop()
        self._warm.close()

    def start(self) -> None:
        super().start()
        for number in range(2, self._reconcilers + 1):
            self.start_part(f"reconciler-{number}", self.parts["reconciler"].arguments)

    def start_worker(self, name: str = "") -> None:
        for worker in [name] if name else self.workers:
            super().start_worker(worker)

    def worker_named(self, worker_id: str) -> str:
        """The part behind a worker's id, `worker-<pid>@<host>`."""
        pid = int(worker_id.partition("@")[0].rpartition("-")[2])
        return next(name for name in self.workers if self.parts[name].process.pid == pid)

    def revive(self) -> None:
        """Restart each part whose process has ended."""
        for name, part in list(self.parts.items()):
            if part.process.poll() is not None:
                self.start_part(name, part.arguments)

    def wait(self, check: Callable[[], bool], seconds: float, what: str) -> None:
        """Wait until `check()`; parts that die meanwhile are restarted."""

        def revived() -> bool:
            self.revive()
            time.sleep(0.1)
            return check()

        services.wait_until(revived, seconds, what)

    def left_over(self) -> list[psutil.Process]:
        """Processes of this stack that still run; call it after `stop`."""
        return marked(self.mark)

    # ---- what a patient user does -------------------------------------------------------------

    def request(self, method: str, path: str, **options: Any) -> httpx.Response:
        """The answer; repeated while there is none or the service is not ready."""
        deadline = time.monotonic() + _ANSWER_SECONDS
        while True:
            try:
                answer = self.http.request(method, path, **options)
            except httpx.TransportError:
                answer = None
            if answer is not None and answer.status_code != 503:
                return answer
            if time.monotonic() > deadline:
                raise TimeoutError(f"{method} {path}: no answer for {_ANSWER_SECONDS} s")
            self.revive()
            time.sleep(0.1)

    def submit(self, body: Mapping[str, Any]) -> str:
        """Submit with a key, as `finetune submit` does, so a repetition creates no second job."""
        headers = {"Idempotency-Key": uuid.uuid4().hex}
        answer = self.request("POST", "/v1/jobs", json=body, headers=headers)
        while answer.status_code == 409:  # the previous request is still in flight
            time.sleep(0.1)
            answer = self.request("POST", "/v1/jobs", json=body, headers=headers)
        assert answer.status_code == 201, answer.text
        return str(answer.json()["id"])

    def job(self, job_id: str) -> dict[str, Any]:
        page: dict[str, Any] = self.request("GET", f"/v1/jobs/{job_id}").raise_for_status().json()
        return page

    def pages(self, path: str) -> list[dict[str, Any]]:
        """All items of a paged list that is numbered by `seq`."""
        items: list[dict[str, Any]] = []
        while True:
            params = {"limit": 100, "after": items[-1]["seq"] if items else 0}
            page = self.request("GET", path, params=params).raise_for_status().json()
            items += page["data"]
            if not page["has_more"]:
                return items

    def wait_for_step(self, job_id: str, step: int) -> dict[str, Any]:
        """The job's page as soon as `train` has made this step."""
        page: dict[str, Any] = {}

        def reached() -> bool:
            page.update(self.job(job_id))
            if page["state"] in ENDED:
                raise AssertionError(f"ended before step {step}: {page['state']} {page['failure']}")
            if page["stage"] != "train":
                return False
            made: int = (page["progress"] or {}).get("step", 0)
            return made >= step

        self.wait(reached, JOB_SECONDS, f"step {step} of {job_id}")
        return page

    def wait_for_ends(self, job_ids: list[str], seconds: float = JOB_SECONDS) -> None:
        """Wait until each of the jobs has ended, in any way; `seconds` for each of them."""
        open_ids = list(job_ids)

        def all_ended() -> bool:
            while open_ids and self.job(open_ids[0])["state"] in ENDED:
                open_ids.pop(0)
            return not open_ids

        self.wait(all_ended, seconds * max(1, len(job_ids)), f"the end of {len(job_ids)} jobs")

    def undisturbed(self, body: Mapping[str, Any]) -> Undisturbed:
        """The result of the job without an attack; it runs once for each spec, not for stubs."""
        known = stub_undisturbed(body)
        if known is not None:
            return known
        key = repr(body)
        if key not in self._undisturbed:
            job_id = self.submit(body)
            self.wait_for_ends([job_id])
            page = self.job(job_id)
            assert page["state"] == "succeeded", f"{page['failure']}\n{self.log(job_id)}"
            sha256 = page["result"]["weights_sha256"]
            self._undisturbed[key] = Undisturbed(sha256, self.losses(job_id))
        return self._undisturbed[key]

    def losses(self, job_id: str) -> dict[int, float]:
        """Step → training loss."""
        rows = self.pages(f"/v1/jobs/{job_id}/metrics")
        return {row["step"]: row["values"]["loss"] for row in rows if row["kind"] == "train"}


@contextmanager
def running(
    *,
    workers: int = 1,
    reconcilers: int = 1,
    database: DatabaseKind = "sqlite",
    mlflow: bool = False,
    stubs: bool = False,
    gpus: bool = False,
    variables: Mapping[str, str] | None = None,
    home: Path | None = None,
) -> Iterator[FaultStack]:
    """A stack with its own broker and database, and with MLflow if requested, while the block runs.

    With `stubs` a job of `stub_body` runs in stages without torch: for attacks that are not about
    training; with `gpus` as well, all workers see the same two GPUs. `variables` are further
    FINETUNE_* settings; FINETUNE_DATABASE_URL overrides `database`. `home` is an empty folder;
    by default a temporary one.
    """
    with ExitStack() as parts:
        if home is None:
            folder = tempfile.TemporaryDirectory(prefix="finetune-faults-")
            home = Path(parts.enter_context(folder))
        given = dict(variables or {})
        if database == "postgres" and "FINETUNE_DATABASE_URL" not in given:
            own = services.postgres_database(services.find_postgres())
            given["FINETUNE_DATABASE_URL"] = parts.enter_context(own)
        broker = parts.enter_context(services.BrokerServer(services.valkey_binary()))
        uri = mlflow_server.shared_uri() if mlflow else None
        stack = FaultStack(
            home, given, broker, uri, workers, reconcilers=reconcilers, stubs=stubs, gpus=gpus
        )
        parts.callback(stack.stop)
        stack.start()
        yield stack


def two_workers(scale: Scale) -> AbstractContextManager[FaultStack]:
    """For attacks on processes. SHORT: SQLite, stub stages; FULL: Postgres, real stages."""
    return running(
        workers=2,
        database=scale.pick(short="sqlite", full="postgres"),
        mlflow=True,
        stubs=scale is Scale.SHORT,
    )
