"""The list of jobs, at a terminal and for scripts."""

import fcntl
import os
import pty
import struct
import subprocess
import sys
import termios
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from rich.cells import cell_len

from service.cli.jobs import table
from service.store.database import Database
from tests.api.factories import add_job, spec
from tests.cli.conftest import Cli
from tests.cli.jobs.job_pages import recorded, text_of

NOW = datetime(2026, 1, 2, tzinfo=UTC)
NAMES = ("x", "a long name " * 16, "模型微调" * 50, "", "é́" * 100)
TASKS = ("question-answering", "text-classification", "token-classification", "causal-lm")
WAITING = {"reason": "backoff", "message": "retry 2 of 3: no", "until": "2026-01-02T00:00:17Z"}
STATES: tuple[dict[str, Any], ...] = (
    {"state": "queued", "waiting": WAITING},
    {"state": "queued", "waiting": {"reason": "no_worker", "message": "no worker", "until": None}},
    {"state": "running", "progress": {"percent": 45.4}},
    {"state": "failed", "failure": {"code": "unsupported_architecture"}},
    {"state": "succeeded", "ended_at": "2026-01-01T03:00:00Z", "last_metrics": {"eval_f1": 88.234}},
)


def line(number: int) -> dict[str, Any]:
    created = NOW - timedelta(hours=number)
    return {
        "id": f"job-18a3f2c{number:02x}" + "0" * 23,
        "name": NAMES[number % len(NAMES)],
        "task": TASKS[number % len(TASKS)],
        "stage": "train",
        "phase": None,
        "progress": None,
        "failure": None,
        "created_at": created.isoformat(),
        "ended_at": None,
        "last_metrics": {},
        **STATES[number % len(STATES)],
    }


def shown(jobs: list[dict[str, Any]], width: int) -> list[str]:
    console = recorded(width)
    ids = table.short_ids([job["id"] for job in jobs], is_filtered=False)
    console.print(table.for_terminal(jobs, ids, width, NOW))
    return text_of(console).splitlines()


class TestForTerminal:
    @pytest.mark.parametrize("width", [80, 100, 160])
    def test_a_hundred_jobs_take_a_line_each_and_none_is_wider(self, width: int) -> None:
        lines = shown([line(number) for number in range(100)], width)
        assert len(lines) == 101
        assert max(cell_len(text) for text in lines) <= width

    def test_what_a_person_looks_for(self) -> None:
        header, *lines = (text.split() for text in shown([line(0), line(2), line(4)], 100))
        assert header == ["id", "name", "task", "state", "age", "took", "metric"]
        waits, runs, succeeded = (" ".join(words) for words in lines)
        assert "queued: retry in 17s 0s" in waits
        assert "running train 45% 2h" in runs
        assert succeeded.endswith("f1 88.2")

    def test_the_best_metric_before_the_latest(self) -> None:
        best = {"name": "eval_rouge2", "value": 12.345, "step": 10}
        (_, text) = shown([{**line(4), "best_metric": best}], 100)
        assert text.rstrip().endswith("rouge2 12.3")

    def test_at_80_columns_too(self) -> None:
        lines = shown([{**line(number), "name": "squad"} for number in (0, 1, 3, 4)], 80)
        assert "queued: retry in 17s" in lines[1]
        assert "queued: no worker" in lines[2]
        assert "failed: unsup" in lines[3]
        assert "f1 88.2" in lines[4]


class TestShortIds:
    def test_the_shortest_that_tell_the_jobs_apart(self) -> None:
        ids = [f"job-18a3f2c41{rest}" + "0" * 21 for rest in ("aa", "ab", "b0")]
        assert table.short_ids(ids, is_filtered=False) == [
            "18a3f2c41aa",
            "18a3f2c41ab",
            "18a3f2c41b0",
        ]
        assert table.short_ids(ids[1:], is_filtered=False) == ["18a3f2c41a", "18a3f2c41b"]
        assert table.short_ids(ids[1:2], is_filtered=False) == ["18a3f2c41"]

    def test_a_job_next_to_the_page_counts(self) -> None:
        ids = [f"job-18a3f2c41{rest}" + "0" * 21 for rest in ("aa", "ab")]
        assert table.short_ids(ids[1:], [ids[0]], is_filtered=False) == ["18a3f2c41ab"]

    def test_longer_where_a_filter_hides_jobs(self) -> None:
        assert table.short_ids(["job-" + "1" * 32], is_filtered=True) == ["1" * 11]
        assert table.short_ids([], is_filtered=True) == []


class TestForScripts:
    def test_whole_ids_and_names_in_columns_that_tabs_separate(
        self, cli: Cli, store: Database, api: str
    ) -> None:
        name = "a name with spaces " * 8
        job_id = add_job(store, spec=spec(name=name.strip()))
        header, row = (text.split("\t") for text in cli("list").out.splitlines())
        assert header == list(table.COLUMNS)
        assert row[:4] == [job_id, name.strip(), "queued", "prepare"]
        assert len(row) == len(header)


def at_terminal(columns: int, *arguments: str) -> list[str]:
    """What `finetune` writes to a terminal of this width."""
    controller, terminal = pty.openpty()
    fcntl.ioctl(terminal, termios.TIOCSWINSZ, struct.pack("HHHH", 40, columns, 0, 0))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    command = [sys.executable, "-m", "service.cli", *arguments]
    process = subprocess.Popen(
        command, stdin=terminal, stdout=terminal, stderr=terminal, env=environment
    )
    os.close(terminal)
    written = b""
    try:
        while block := os.read(controller, 65536):
            written += block
    except OSError:  # Linux: the terminal has no writer any more
        pass
    os.close(controller)
    assert process.wait(30) == 0
    return written.decode().splitlines()


@pytest.mark.usefixtures("processes")
def test_a_terminal_gets_short_ids_that_commands_take(
    cli: Cli, store: Database, api: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TERM", "dumb")
    ids = [f"job-18a3f2c4{end}" + "0" * 22 for end in ("0b", "1a", "1b", "1c")]
    for job_id in ids:
        add_job(store, id=job_id, spec=spec(name="模型" * 40))
    lines = at_terminal(80, "list", "--after", ids[3])
    assert [cell_len(text.rstrip()) <= 80 for text in lines] == [True] * 4
    shown = [text.split()[0] for text in lines[1:]]
    # The job that the page starts after has another id, too.
    assert shown == ["18a3f2c41b", "18a3f2c41a", "18a3f2c40b"]
    assert [cli("get", each, "--json").json()["id"] for each in shown] == ids[2::-1]
