"""A hostile stage under the real supervisor, with each layer alone and with both."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import psutil
import pytest

from service.contract.states import Stage
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import queries
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobRow
from tests.sandbox.targets import BOTH, OPEN, Targets, targets
from tests.support import forked_stubs
from tests.support.factories import claim_job, make_job
from tests.support.stages import hostile
from tests.support.store.databases import on_sqlite
from tests.support.store.job_rows import get, history_of
from worker.sandbox import landlock, layers
from worker.sandbox.view import Layer
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker

NEEDED = {
    BOTH: {Layer.LANDLOCK, Layer.NAMESPACES},
    "namespaces": {Layer.NAMESPACES},
    "landlock": {Layer.LANDLOCK},
}


def confined(settings: Settings, used: str, **more: Any) -> Settings:
    settings = settings.model_copy(update={"sandbox_layers": used, **more})
    if set(layers.used(settings)) != NEEDED[used]:
        pytest.skip(f"this machine does not offer {used}")
    if "landlock" in used and landlock.version() < landlock.SCOPES:
        pytest.skip(f"Landlock has version {landlock.version()} here, which does not scope signals")
    return settings


def attack(
    database: Database, settings: Settings, aims: Targets, stage: Stage = Stage.TRAIN, lie: str = ""
) -> tuple[JobRow, dict[str, Any]]:
    """The job after the attempt, and what the stage succeeded with."""
    with sqlite3.connect(settings.home / "finetune.db") as home:
        home.execute("create table if not exists hostile (key text)")
    metadata = {**aims.metadata, **({"hostile.lie": lie} if lie else {})}
    job_id = make_job(database, metadata=metadata)
    epoch = 1
    if stage is Stage.TRAIN:
        supervisor = Supervisor(
            database,
            settings,
            NullTracker(),
            command=forked_stubs.command,
            start=forked_stubs.start,
        )
        assert supervisor.supervise(claim_job(database, job_id)) == "queued", _log(settings, job_id)
        epoch = 2
    supervisor = Supervisor(database, settings, NullTracker(), command=hostile.command)
    supervisor.supervise(claim_job(database, job_id))
    file = settings.workspace(job_id) / f"attempts/{epoch}/successes.json"
    with database.read() as session:
        row = session.get(JobRow, job_id)
    assert row is not None
    assert file.exists(), _log(settings, job_id)
    return row, json.loads(file.read_text())["successes"]


def _log(settings: Settings, job_id: str) -> str:
    return (settings.workspace(job_id) / "job.log").read_text()


def left_behind(settings: Settings) -> list[psutil.Process]:
    """Processes of the stage that outlived its attempt; they are ended."""
    found = []
    for process in psutil.process_iter(["cmdline"]):
        words = process.info["cmdline"] or []
        if "hostile.py" in " ".join(words) and str(settings.home) in " ".join(words):
            found.append(process)
            process.kill()
    return found


@pytest.mark.usefixtures("processes")
@on_sqlite
@pytest.mark.parametrize("used", [BOTH, "namespaces", "landlock"])
def test_a_training_gets_nothing(
    database: Database, settings: Settings, used: str, tmp_path: Path
) -> None:
    settings = confined(settings, used)
    with targets(settings.home) as aims:
        job, successes = attack(database, settings, aims)
        time.sleep(0.2)
        heard = aims.heard
    assert left_behind(settings) == []
    assert set(successes) - OPEN[used] == set(), successes
    assert job.state == "queued", "its own work is not disturbed"
    planted = list(tmp_path.rglob("planted*"))
    assert planted == []
    assert not (settings.workspace(job.id) / "job.log").is_symlink()
    if Layer.NAMESPACES in layers.used(settings):
        assert heard == []


@pytest.mark.usefixtures("processes")
@on_sqlite
def test_a_preparation_gets_no_files_and_no_processes(
    database: Database, settings: Settings
) -> None:
    """It has the network: it downloads."""
    settings = confined(settings, BOTH)
    with targets(settings.home) as aims:
        _, successes = attack(database, settings, aims, Stage.PREPARE)
        assert set(successes) - {"listen"} == set(), successes
        assert "a connection" not in [text.decode() for text in aims.heard]
    assert left_behind(settings) == []


@pytest.mark.usefixtures("processes")
@on_sqlite
@pytest.mark.parametrize("lie", ["link", "outside", "checkpoint", "step", "permission"])
def test_what_cannot_be_true_is_refused(database: Database, settings: Settings, lie: str) -> None:
    with targets(settings.home) as aims:
        job, _ = attack(database, settings, aims, lie=lie)
    left_behind(settings)
    assert job.state == "failed"
    assert job.failure is not None
    assert job.failure["code"] == "stage_untrustworthy"
    with database.read() as session:
        assert queries.artifacts(session, EVERYTHING, job.id, after=None, limit=10)[0] == []


@pytest.mark.usefixtures("processes")
def test_a_character_that_no_database_stores(database: Database, settings: Settings) -> None:
    with targets(settings.home) as aims:
        job, _ = attack(database, settings, aims, lie="nul")
    left_behind(settings)
    assert job.state == "queued"
    [notice] = [e.data for e in history_of(database, job.id) if "after" in str(e.data)]
    assert notice == {"message": "before\ufffdafter", "data": {"\ufffd": ["\ufffd"]}}


@pytest.mark.usefixtures("processes")
@on_sqlite
def test_invalid_events_do_no_harm(database: Database, settings: Settings) -> None:
    before = psutil.Process().memory_info().rss
    with targets(settings.home) as aims:
        job, _ = attack(database, settings, aims, lie="long-line numbers flood")
    left_behind(settings)
    assert job.state == "queued"
    last = f"{hostile.FLOOD - 1}"
    assert [e for e in history_of(database, job.id) if e.data.get("message") == last]
    assert psutil.Process().memory_info().rss - before < 256 * 1024**2


@on_sqlite
def test_require_refuses_where_something_is_missing(database: Database, settings: Settings) -> None:
    required = {"sandbox": "require", "sandbox_layers": "landlock"}
    settings = settings.model_copy(update=required)
    with pytest.raises(layers.SandboxError, match="send UDP"):
        layers.require(settings)
    job_id = make_job(database)
    Supervisor(database, settings, NullTracker()).supervise(claim_job(database, job_id))
    failure = get(database, job_id).failure
    assert failure is not None
    assert failure["code"] == "sandbox_incomplete"


@pytest.mark.usefixtures("processes")
@on_sqlite
def test_what_is_missing_is_reported_in_the_job(database: Database, settings: Settings) -> None:
    settings = settings.model_copy(update={"sandbox_layers": "landlock"})
    with targets(settings.home) as aims:
        job, _ = attack(database, settings, aims, Stage.PREPARE)
    left_behind(settings)
    history = history_of(database, job.id)
    notices = [event.data["data"] for event in history if event.type == "notice"]
    missing = [data["missing"] for data in notices if "missing" in data]
    assert ["send UDP" in each for each in missing] == [True]
