"""SIGKILLs of the API while files arrive in parts and are put together."""

import hashlib
import logging
import multiprocessing
import random
import tempfile
import threading
import time
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from functools import partial
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any, Final

import httpx
import structlog
import uvicorn
from sqlalchemy import func, select, update

from chaos.rows import Report, Row, Scale, timed
from service.api.app import create_app
from service.api.http.server import options
from service.jobs.retention import Retention
from service.settings import Settings
from service.store import schema
from service.store.database import Database, db_now
from service.store.projects import quotas
from service.store.tables.files import FileRow, RemovalRow
from service.store.tables.projects import DEFAULT_PROJECT
from service.store.tables.uploads import UploadPartRow, UploadRow
from tests.support.servers.services import free_port, wait_until

HOLDS: Final = (
    "a completed upload is one whole file; after the sweep no other bytes are left and the "
    "project's storage is the sum of its files"
)
_CLIENTS: Final = 4
_AT_ONCE: Final = 2
_PARTS: Final = (4, 12)
_PART_BYTES: Final = (20_000, 300_000)
_LONGEST_DELAY: Final = 0.2
_PATIENCE_SECONDS: Final = 120.0
_BUSY: Final = (429, 502, 503)


def run(seed: int, scale: Scale) -> Row:
    """Half of the kills come while a part is sent, half while parts become a file."""
    kills = scale.pick(short=8, full=100)
    rng = random.Random(seed)
    with (
        timed("SIGKILL of the API during uploads", HOLDS) as report,
        tempfile.TemporaryDirectory() as folder,
    ):
        home = Path(folder)
        settings = Settings(home=home, auth="off", redis_url="redis://127.0.0.1:1")
        database = Database(settings.sqlalchemy_url)
        schema.upgrade(database.engine)
        api = _Api(settings, free_port())
        clients = [_Client(api.url, database, seed * 100 + n) for n in range(_CLIENTS)]
        interrupted: set[str] = set()
        with _sweeping(database, settings), _at_work(clients):
            for number in range(kills):
                kind = ("part", "complete")[number % 2]
                api.kill_during(kind, clients, rng.uniform(0.0, _LONGEST_DELAY))
                interrupted |= _assembling(database)
                report.faults += _damaged(database, settings)
            api.start()
        api.kill()
        # The API removes what it was receiving when it starts.
        api.start()
        _end(database, settings)
        _compare(report, database, settings, api, clients)
        api.kill()
        database.dispose()
        report.done = (
            f"{kills} SIGKILLs, half of them during a part and half during a completion; "
            f"{len(interrupted)} uploads were half put together; {_counts(clients)}, seed {seed}"
        )
    return report.row()


class _Api:
    """A process of its own, which serves as `finetune api` does."""

    def __init__(self, settings: Settings, port: int) -> None:
        self.url = f"http://127.0.0.1:{port}"
        self._settings = settings
        self._port = port
        self._process: BaseProcess | None = None

    def start(self) -> None:
        context = multiprocessing.get_context("forkserver")
        context.set_forkserver_preload(["chaos.attacks.requests.uploads"])
        self._process = context.Process(
            target=_serve, args=(self._settings, self._port), daemon=True
        )
        self._process.start()
        wait_until(self._answers, _PATIENCE_SECONDS, "the API")

    def _answers(self) -> bool:
        with suppress(httpx.TransportError):
            return httpx.get(f"{self.url}/health/live", timeout=5).status_code == 200
        return False

    def kill_during(self, kind: str, clients: list["_Client"], delay: float) -> None:
        """Start it, and kill it so long after a client is seen in a request of this kind."""
        self.start()

        def is_sent() -> bool:
            return any(client.requests[kind] or client.faults for client in clients)

        wait_until(is_sent, _PATIENCE_SECONDS, f"a request of kind {kind}")
        time.sleep(delay)
        self.kill()

    def kill(self) -> None:
        assert self._process is not None
        self._process.kill()
        self._process.join()


def _serve(settings: Settings, port: int) -> None:
    """What the process that is killed does."""
    logging.disable()
    structlog.configure(wrapper_class=structlog.make_filtering_bound_logger(logging.CRITICAL))
    uvicorn.run(create_app(settings), host="127.0.0.1", port=port, **options(settings))


class _Client:
    """Uploads one file after the other and repeats each request until it is answered; cancels
    some uploads, and forgets others."""

    def __init__(self, url: str, database: Database, seed: int) -> None:
        self.requests: Counter[str] = Counter()
        """In flight, by kind."""
        self.completed: dict[str, str] = {}
        """The sha256 of each file, by its id."""
        self.faults: list[str] = []
        self.ends: Counter[str] = Counter()
        self._database = database
        self._rng = random.Random(seed)
        self._http = httpx.Client(base_url=url, timeout=30)
        self._lock = threading.Lock()

    def work(self, stop: threading.Event) -> None:
        """Until `stop` is set and the last file has arrived."""
        with ThreadPoolExecutor(_AT_ONCE) as pool, self._http:
            while not stop.is_set():
                try:
                    self._upload(pool)
                except (AssertionError, TimeoutError) as error:
                    self.faults.append(str(error))

    def _upload(self, pool: ThreadPoolExecutor) -> None:
        sizes = [self._rng.randint(*_PART_BYTES) for _ in range(self._rng.randint(*_PARTS))]
        parts = [self._rng.randbytes(size) for size in sizes]
        content = b"".join(parts)
        body = {"bytes": len(content), "filename": "a", "mime_type": "a", "purpose": "fine-tune"}
        upload = self._request("create", "", json=body)["id"]
        end = self._rng.choices(("completed", "cancelled", "forgotten"), (8, 1, 1))[0]
        if end != "completed":
            parts = parts[: len(parts) // 2]
        sent = pool.map(partial(self._part, upload), parts)
        ids = [each["id"] for each in sent]
        self.ends[end] += 1
        if end == "completed":
            body = {"part_ids": ids, "md5": hashlib.md5(content).hexdigest()}
            done = self._request("complete", f"/{upload}/complete", json=body)
            self.completed[done["file"]["id"]] = hashlib.sha256(content).hexdigest()
        elif end == "cancelled":
            self._request("cancel", f"/{upload}/cancel")
        else:
            with self._database.write() as session:
                expired = update(UploadRow).where(UploadRow.id == upload)
                session.execute(expired.values(expires_at=db_now(-1)))

    def _part(self, upload: str, data: bytes) -> Any:
        return self._request("part", f"/{upload}/parts", files={"data": data})

    def _request(self, kind: str, path: str, **options: Any) -> Any:
        """The answer, however often the API is killed meanwhile."""
        until = time.monotonic() + _PATIENCE_SECONDS
        while time.monotonic() < until:
            try:
                with self._counted(kind):
                    answer = self._http.post(f"/v1/uploads{path}", **options)
            except httpx.TransportError:
                time.sleep(0.02)
                continue
            if answer.status_code not in _BUSY:
                assert answer.status_code == 200, f"{kind}: {answer.text[:300]}"
                return answer.json()
        raise TimeoutError(f"{kind}: no answer")

    @contextmanager
    def _counted(self, kind: str) -> Iterator[None]:
        with self._lock:
            self.requests[kind] += 1
        try:
            yield
        finally:
            with self._lock:
                self.requests[kind] -= 1


@contextmanager
def _at_work(clients: list[_Client]) -> Iterator[None]:
    stop = threading.Event()
    with _running([partial(client.work, stop) for client in clients], stop):
        yield


@contextmanager
def _sweeping(database: Database, settings: Settings) -> Iterator[None]:
    """As the reconciler does, but all the time."""
    stop = threading.Event()
    often = settings.model_copy(update={"retention_sweep_seconds": 0.1})
    with _running([partial(Retention(database, often).run, stop)], stop):
        yield


@contextmanager
def _running(targets: list[Callable[[], None]], stop: threading.Event) -> Iterator[None]:
    threads = [threading.Thread(target=target) for target in targets]
    for thread in threads:
        thread.start()
    try:
        yield
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _assembling(database: Database) -> set[str]:
    """Ids of uploads whose completion the kill has interrupted."""
    with database.read() as session:
        return set(session.scalars(select(UploadRow.id).where(UploadRow.state == "assembling")))


def _damaged(database: Database, settings: Settings) -> list[str]:
    """Files that have a row, but not all of their bytes."""
    with database.read() as session:
        rows = session.execute(select(FileRow.id, FileRow.bytes)).all()
    return [
        f"{row.id} is not whole"
        for row in rows
        if not (path := settings.files_dir / row.id).is_file() or path.stat().st_size != row.bytes
    ]


def _end(database: Database, settings: Settings) -> None:
    """Let all times pass and sweep."""
    with database.write() as session:
        session.execute(update(UploadRow).values(expires_at=db_now(-1)))
        session.execute(update(RemovalRow).values(created_at=db_now(-1)))
    for _ in range(2):
        Retention(database, settings).step()


def _compare(
    report: Report, database: Database, settings: Settings, api: _Api, clients: list[_Client]
) -> None:
    completed: dict[str, str] = {}
    for client in clients:
        report.faults += client.faults
        completed |= client.completed
    for file_id, sha256 in completed.items():
        content = httpx.get(f"{api.url}/v1/files/{file_id}/content").content
        if hashlib.sha256(content).hexdigest() != sha256:
            report.faults.append(f"{file_id} has other bytes than were sent")
    with database.read() as session:
        sizes = {row.id: row.bytes for row in session.scalars(select(FileRow))}
        parts = session.scalar(select(func.count()).select_from(UploadPartRow))
        stored = quotas.stored_bytes(session, DEFAULT_PROJECT)
    left = [
        path.name
        for folder in (settings.files_dir, settings.uploads_dir)
        for path in folder.iterdir()
        if path.name not in sizes
    ]
    if sizes.keys() != completed.keys():
        report.faults.append(f"{len(sizes)} files have rows; {len(completed)} were completed")
    if left or parts:
        report.faults.append(f"left after the sweep: {parts} rows of parts, {left[:5]}")
    if stored != sum(sizes.values()):
        report.faults.append(f"the project stores {stored} bytes; it has {sum(sizes.values())}")
    report.outcome = (
        f"{len(completed)} files of {stored / 1e6:,.0f} MB with the bytes that were sent, nothing "
        "else on the disk, and as many bytes counted"
    )


def _counts(clients: list[_Client]) -> str:
    ends: Counter[str] = sum((client.ends for client in clients), Counter())
    return ", ".join(f"{count} uploads {end}" for end, count in sorted(ends.items()))
