"""Commands that follow a job by its live streams, from a real API."""

import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from finetune_client.errors import NotFoundError

from service.cli.jobs import history, streams
from service.cli.terminal.client import Client, UnreachableError
from service.contract.stage.events import Metric, Notice
from service.store.database import Database
from tests.cli.conftest import Cli
from tests.cli.job_rows import claim, end, record
from tests.support.servers.services import wait_until


@pytest.fixture
def opened(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Paths of the streams that were asked for."""
    paths: list[str] = []
    real = Client.messages

    def messages(self: Client, path: str, *given: Any) -> Iterator[Any]:
        paths.append(path.rpartition("job-")[2].partition("/")[2])
        return real(self, path, *given)

    monkeypatch.setattr(Client, "messages", messages)
    return paths


@contextmanager
def meanwhile(work: Callable[[], None]) -> Iterator[None]:
    thread = threading.Thread(target=work)
    thread.start()
    yield
    thread.join()


class TestFollow:
    def test_a_command_asks_only_when_something_has_changed(
        self,
        cli: Cli,
        store: Database,
        job_id: str,
        opened: list[str],
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        asked: list[str] = []
        get = Client.get
        monkeypatch.setattr(
            Client,
            "get",
            lambda self, path, *given: (asked.append(path), get(self, path, *given))[1],
        )
        monkeypatch.setattr(history, "POLL_SECONDS", 0.05)
        claim(store, job_id)

        def work() -> None:
            wait_until(lambda: opened, 20, "the stream")
            time.sleep(2)  # 40 times the wait between two reads
            record(store, job_id, Metric(kind="train", step=1, values={"loss": 1.0}))
            record(store, job_id, Notice(message="half"))
            end(store, job_id, "succeeded")

        with meanwhile(work):
            shown = cli("logs", job_id, "--follow").out
        assert [line[9:] for line in shown.splitlines()] == [
            "submitted",
            "attempt 1 of prepare started on worker w1",
            "step 1  loss 1",
            "half",
        ]
        assert opened == ["events/stream"]
        assert asked.count(f"/v1/jobs/{job_id}") < 20

    def test_the_text_comes_by_a_stream(
        self, cli: Cli, home: Path, store: Database, job_id: str, opened: list[str]
    ) -> None:
        log = home / "jobs" / job_id / "job.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("one\n")

        def work() -> None:
            wait_until(lambda: opened, 20, "the stream")
            with log.open("a") as file:
                file.write("two — ü\n")
            end(store, job_id, "succeeded")

        with meanwhile(work):
            assert cli("logs", job_id, "--raw", "--follow").out == "one\ntwo — ü\n"
        assert opened == ["logs/stream"]


class TestChanges:
    def test_a_service_that_does_not_answer_is_polled(self) -> None:
        answers = threading.Semaphore(0)

        class Answers:
            def messages(self, _path: str, _place: Any, lost: Callable[[Any], None]) -> Any:
                assert answers.acquire(timeout=5)
                yield "progress"
                assert answers.acquire(timeout=5)
                lost(UnreachableError("unreachable"))
                assert answers.acquire(timeout=5)
                yield "progress"
                assert answers.acquire(timeout=5)
                raise NotFoundError(404, {})

        with streams.Changes(Answers(), "job-1") as changes:  # type: ignore[arg-type]
            assert changes.happened(0)
            for silent in (True, False, True, False):
                answers.release()
                if silent:
                    wait_until(lambda: changes.happened(0) and not changes.happened(0), 5, "it")
                else:
                    wait_until(lambda: changes.happened(0) and changes.happened(0), 5, "polling")
