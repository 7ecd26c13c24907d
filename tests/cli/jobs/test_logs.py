"""`finetune logs` and `events`; the tests write to the store what a worker would."""

import re
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from service.cli.jobs import history, logs
from service.cli.terminal.client import ApiError, UnreachableError
from service.contract.stage.events import CheckpointSaved, Metric, Notice, PhaseChanged
from service.contract.states import Phase
from service.store.database import Database
from tests.cli.conftest import Cli
from tests.cli.job_rows import claim, end, record
from tests.cli.pauses import in_pauses


def step(number: int) -> Metric:
    return Metric(kind="train", step=number, values={"loss": 1.0})


SAVED = CheckpointSaved(step=2, path="c/2", bytes=1024, manifest_sha256="0" * 64)


def without_times(out: str) -> list[str]:
    lines = out.splitlines()
    assert all(re.match(r"\d\d:\d\d:\d\d ", line) for line in lines), lines
    return [line[9:] for line in lines]


class TestLogs:
    def test_what_there_is_so_far_in_order(self, cli: Cli, store: Database, job_id: str) -> None:
        claim(store, job_id)
        record(store, job_id, PhaseChanged(phase=Phase.LOADING), step(1))
        record(store, job_id, PhaseChanged(phase=Phase.TRAINING), SAVED, step(2))
        record(store, job_id, Metric(kind="system", step=1, values={"cpu_percent": 1.0}))
        record(store, job_id, Metric(kind="eval", step=2, values={"eval_loss": 2.0}))
        record(store, job_id, Notice(message="two\nlines"))
        assert without_times(cli("logs", job_id).out) == [
            "submitted",
            "attempt 1 of prepare started on worker w1",
            "loading",
            "step 1  loss 1",
            "step 2  loss 1",
            "checkpoint at step 2, 1.0 KiB",
            "evaluation at step 2: loss 2",
            "two lines",
        ]

    def test_json_has_every_event_and_metric(self, cli: Cli, store: Database, job_id: str) -> None:
        claim(store, job_id)
        record(store, job_id, PhaseChanged(phase=Phase.TRAINING), step(1))
        items = cli("logs", job_id, "--json").json_lines()
        assert [item.get("type") or item["kind"] for item in items] == [
            "submitted",
            "stage_started",
            "phase",
            "train",
        ]

    def test_follow_shows_each_thing_once_until_the_end(
        self, cli: Cli, store: Database, job_id: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history, "_PAGE", 2)
        claim(store, job_id)
        in_pauses(
            monkeypatch,
            history,
            lambda: record(store, job_id, *(step(number) for number in range(1, 6))),
            lambda: record(store, job_id, Notice(message="half"), step(6)),
            lambda: None,
            lambda: record(store, job_id, SAVED),
            lambda: end(store, job_id, "succeeded"),
        )
        assert without_times(cli("logs", job_id, "--follow").out) == [
            "submitted",
            "attempt 1 of prepare started on worker w1",
            *(f"step {number}  loss 1" for number in range(1, 6)),
            "half",
            "step 6  loss 1",
            "checkpoint at step 2, 1.0 KiB",
        ]

    def test_a_day_that_is_not_today_is_named(self) -> None:
        lines = logs.Lines()
        times = ["2026-01-01T12:00:00Z", "2026-01-01T12:00:01Z", "2026-01-03T12:00:01Z"]
        printed = [
            lines.render({"at": at, "type": "paused", "data": {}, "seq": 1, "epoch": 1})
            for at in times
        ]
        assert [len(lines) for lines in printed] == [2, 1, 2]
        assert printed[2][0] == "2026-01-03"


class TestRawLogs:
    @pytest.fixture
    def log(self, home: Path, job_id: str) -> Path:
        log = home / "jobs" / job_id / "job.log"
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_text("one\ntwo — ü\n")
        return log

    def test_prints_the_text(self, cli: Cli, job_id: str, log: Path) -> None:
        assert cli("logs", job_id, "--raw").out == "one\ntwo — ü\n"
        parts = cli("logs", job_id, "--raw", "--json").json_lines()
        assert "".join(part["content"] for part in parts) == "one\ntwo — ü\n"

    def test_follow_ends_with_the_job(
        self,
        cli: Cli,
        log: Path,
        store: Database,
        job_id: str,
        monkeypatch: pytest.MonkeyPatch,
    ) -> None:
        def work() -> None:
            with log.open("a") as file:
                file.write("three\n")
            end(store, job_id, "succeeded")

        in_pauses(monkeypatch, logs, work)
        assert cli("logs", job_id, "--raw", "--follow").out == "one\ntwo — ü\nthree\n"


def item(kind: str, seq: int, second: int) -> dict[str, Any]:
    name = "type" if kind == "notice" else "kind"
    return {"seq": seq, "at": f"2026-01-01T00:00:{second:02}Z", name: kind}


class Answers:
    """A client with the pages that each call of `get` returns; an exception is raised."""

    def __init__(self, **pages: Sequence[Any]) -> None:
        self._pages = {kind: list(answers) for kind, answers in pages.items()}

    def get(self, path: str, _params: Any) -> Any:
        answer = self._pages[path.rsplit("/", 1)[1]].pop(0)
        if isinstance(answer, Exception):
            raise answer
        return {"data": answer, "has_more": False}


class TestHistory:
    def read(self, calls: int, **pages: Sequence[Any]) -> list[list[int]]:
        """The seconds of the items that each call returns."""
        stream = history.History(Answers(**pages), "job-1")  # type: ignore[arg-type]
        found = []
        for _ in range(calls):
            try:
                found.append([int(each["at"][17:19]) for each in stream.new()])
            except UnreachableError:
                found.append([-1])
        return found

    def test_an_event_waits_for_the_metrics_before_it(self) -> None:
        """The metric of second 2 was written after the metrics were read, before the events."""
        assert self.read(
            2,
            metrics=[[item("train", 1, 1)], [item("train", 2, 2)]],
            events=[[item("notice", 1, 1), item("notice", 2, 3)], []],
        ) == [[1, 1], [2, 3]]

    def test_nothing_is_lost_when_the_service_restarts_between_two_requests(self) -> None:
        unreachable = UnreachableError("unreachable")
        assert self.read(
            4,
            metrics=[[item("train", 1, 1)], [item("train", 2, 4)], unreachable, []],
            events=[unreachable, [item("notice", 1, 2), item("notice", 2, 5)], []],
        ) == [[-1], [1, 2, 4], [-1], [5]]

    def test_nor_at_the_end_of_the_job(self) -> None:
        unreachable = UnreachableError("unreachable")
        answers = Answers(
            metrics=[[item("train", 1, 1)], unreachable, [item("train", 2, 4)], []],
            events=[[item("notice", 1, 1)], [item("notice", 2, 5)], []],
        )
        stream = history.History(answers, "job-1")  # type: ignore[arg-type]
        shown: list[dict[str, Any]] = []
        while len(shown) < 4:
            with suppress(UnreachableError):
                shown += stream.rest()
        assert [int(each["at"][17:19]) for each in shown] == [1, 1, 4, 5]


class TestPatiently:
    def test_gives_up_if_the_service_stays_unreachable(
        self, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(history, "UNREACHABLE_SECONDS", -1)

        def unreachable() -> None:
            raise UnreachableError("unreachable")

        with pytest.raises(UnreachableError):
            history.patiently(unreachable)

    def test_a_restarting_service_is_asked_again(
        self, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
    ) -> None:
        monkeypatch.setattr(history, "POLL_SECONDS", 0)
        answers = iter([ApiError(503, {}), UnreachableError("unreachable"), None])

        def read() -> str:
            if error := next(answers):
                raise error
            return "page"

        assert history.patiently(read) == "page"
        assert capsys.readouterr().err == ("The service does not answer; trying again for 2 min.\n")

    def test_a_refusal_is_final(self) -> None:
        def refuse() -> None:
            raise ApiError(404, {})

        with pytest.raises(ApiError):
            history.patiently(refuse)
