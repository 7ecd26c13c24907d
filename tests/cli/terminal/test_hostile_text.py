"""Names, labels, events, failures and logs of a job reach a terminal as text."""

from pathlib import Path
from typing import Any

import httpx
import pytest

from service.contract.stage.events import Notice
from service.contract.states import JobState
from service.store.database import Database
from tests.cli.conftest import Cli
from tests.cli.job_rows import claim, record
from tests.support.hostile_text import HOSTILE, steering
from tests.support.store.job_rows import put

# What the API accepts in a name: one line, and characters that UTF-8 has.
NAMES = [text for text in HOSTILE if not {*map(ord, text)} & {*range(32), 127, 0xDC9B}]
COMMANDS = ("list", "get", "events", "logs", "logs --raw")


def hostile_job(http: httpx.Client, store: Database, home: Path, name: str, text: str) -> str:
    """A failed job; its stage has reported `text` wherever a stage says something."""
    upload = http.post(
        "/v1/files",
        files={"file": (f"{name[:40]}.jsonl", b'{"a": 1}\n')},
        data={"purpose": "fine-tune"},
    ).json()
    spec: dict[str, Any] = {
        "name": name,
        "metadata": {"label": name},
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "upload", "train": [upload["id"]], "columns": {"context": name}},
    }
    job_id = str(http.post("/v1/jobs", json=spec).raise_for_status().json()["id"])
    claim(store, job_id)
    clean = text.encode("utf-8", "replace").decode()  # the pipe of events is UTF-8
    record(store, job_id, Notice(message=clean[:200] or "-"))
    failure = {"code": "internal", "message": clean, "action": clean, "details": {}}
    results = {
        "prepare": {"samples": []},
        "train": {"metrics": {clean: 1.0}, "baseline": {}, "output_dir": "a/1/output"},
    }
    put(store, job_id, state=JobState.FAILED, failure=failure, results=results, phase=None)
    log = home / "jobs" / job_id / "job.log"
    log.parent.mkdir(parents=True, exist_ok=True)
    log.write_bytes(text.encode("utf-8", "surrogatepass") + b"\n")
    return job_id


def is_for_terminals(text: str) -> bool:
    """Others are for pages, scripts and formats."""
    return bool(steering(text)) or "[link=" in text


@pytest.mark.parametrize(
    ("name", "text"),
    [
        pytest.param(
            NAMES[n % len(NAMES)],
            text,
            marks=[] if is_for_terminals(text) else pytest.mark.heavy,
        )
        for n, text in enumerate(HOSTILE)
    ],
)
def test_no_command_steers_the_terminal(
    cli: Cli, http: httpx.Client, store: Database, home: Path, name: str, text: str
) -> None:
    job_id = hostile_job(http, store, home, name, text)
    outcomes = {}
    for command in COMMANDS:
        arguments = [*command.split(), *([] if command == "list" else [job_id])]
        for more in ([], ["--json"]):
            outcome = outcomes[command, *more] = cli(*arguments, *more)
            assert outcome.status == 0, outcome.err
            assert steering(outcome.out + outcome.err) == [], arguments
    assert "rich" not in name or "[link=http://evil.example]rich" in outcomes["get",].out
    assert outcomes["get", "--json"].json()["name"] == name


def test_a_key_is_never_shown(cli: Cli, monkeypatch: pytest.MonkeyPatch) -> None:
    key = "ft-" + "Zm9vYmFyYmF6" * 3
    monkeypatch.setenv("FINETUNE_URL", "http://127.0.0.1:9")
    for given in (f"{key} ", f"{key}\n", f"{key}\x00", f"{key} {key}", f"é{key}"):
        monkeypatch.setenv("FINETUNE_API_KEY", given.replace("\x00", "\x01"))
        for arguments in (("list",), ("keys", "revoke", given.replace("\x00", ""))):
            outcome = cli(*arguments)
            assert outcome.status in (2, 3)
            assert "Zm9v" not in outcome.out + outcome.err
