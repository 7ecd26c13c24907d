"""The real supervision of a preview, with a stage without torch."""

import errno
import os
import sys
import tempfile
from pathlib import Path
from typing import Any

import pytest
from pydantic import SecretStr

from service.contract.failures import FailureCode
from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.interactive import preview_claims
from service.store.tables.files import RemovalRow
from service.store.tables.interactive import PreviewRow
from tests.supervision.support import children, meanwhile, run
from tests.support import forked_stubs
from tests.support.factories import make_job
from tests.support.store.databases import on_sqlite
from tests.support.store.previews import make_preview, preview, put_preview
from tests.support.store.projects import make_project
from worker.devices import memory
from worker.lifecycle.shutdown import Shutdown
from worker.processes.spawn import Launch, Process
from worker.supervision.interactive.previews import Previews

pytestmark = on_sqlite  # what differs between databases is in tests/store


def make(
    database: Database, settings: Settings, behaviour: str = "finish", **metadata: str
) -> PreviewRow:
    """The row after one message, when nothing is left of its stage."""
    preview_id = make_preview(database, metadata={"stub.preview": behaviour, **metadata})
    maker(database, settings).wake(preview_id, "worker-1")
    assert_nothing_left(database, settings)
    return preview(database, preview_id)


def maker(database: Database, settings: Settings, shutdown: Shutdown | None = None) -> Previews:
    return Previews(
        database,
        settings,
        command=forked_stubs.preview_command,
        start=forked_stubs.start,
        shutdown=shutdown,
    )


def assert_nothing_left(database: Database, settings: Settings) -> None:
    assert list(settings.jobs_dir.iterdir()) == []
    assert list(Path(tempfile.gettempdir()).glob(f"finetune-stage-{os.getpid()}-*")) == []
    assert children() == []
    with database.read() as session:
        assert session.query(RemovalRow).count() == 0


def failure_of(database: Database, preview_id: str) -> dict[str, Any]:
    """The preview has failed."""
    row = preview(database, preview_id)
    assert row.state == "failed"
    assert row.failure is not None
    return row.failure


def is_claimed(database: Database, settings: Settings, preview_id: str) -> bool:
    return (settings.workspace(preview_id) / "attempts" / "1" / "made").exists()


@pytest.mark.usefixtures("processes")
def test_the_result_is_recorded(database: Database, settings: Settings) -> None:
    row = make(database, settings)
    assert (row.state, row.failure, row.epoch) == ("succeeded", None, 1)
    assert row.result is not None
    assert (row.result["rows_limit"], row.result["max_length"]) == (100, 128)


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(
    ("behaviour", "code"),
    [
        ("fail:model_not_found", "model_not_found"),
        ("kill", "worker_lost"),
        ("form", "stage_untrustworthy"),
        ("large", "stage_untrustworthy"),
    ],
)
def test_a_bad_end_is_the_failure_of_a_job(
    database: Database, settings: Settings, behaviour: str, code: str
) -> None:
    row = make(database, settings, behaviour)
    failure = failure_of(database, row.id)
    assert (failure["code"], row.result) == (code, None)
    assert failure["action"]


def test_a_stage_that_cannot_be_started_is_a_failure(
    database: Database, settings: Settings
) -> None:
    """Not the loss of three workers in a row."""

    def start(_: Launch) -> Process:
        raise BlockingIOError(errno.EAGAIN, "no process can be made")

    preview_id = make_preview(database)
    Previews(database, settings, command=forked_stubs.preview_command, start=start).wake(
        preview_id, "worker-1"
    )
    failure = failure_of(database, preview_id)
    assert failure["code"] == "process_limit"
    assert "no process can be made" in failure["message"]
    assert_nothing_left(database, settings)


def test_missing_inputs_are_a_failure(database: Database, settings: Settings) -> None:
    preview_id = make_preview(
        database, dataset={"source": "upload", "train": "file-0199a0b1c2d3e4f5a6b7c8d9"}
    )
    maker(database, settings).wake(preview_id, "worker-1")
    assert failure_of(database, preview_id)["code"] == FailureCode.DATASET_NOT_FOUND
    assert_nothing_left(database, settings)


def test_a_missing_secret_is_a_failure(database: Database, settings: Settings) -> None:
    preview_id = make_preview(database, secrets={"hub_token": "mine"})
    maker(database, settings).wake(preview_id, "worker-1")
    assert failure_of(database, preview_id)["code"] == FailureCode.SECRET_UNAVAILABLE


@pytest.mark.usefixtures("processes")
@pytest.mark.parametrize(("project", "token"), [("default", "hf_operators"), ("other", "none")])
def test_the_operator_s_token_is_the_default_project_s_alone(
    database: Database, settings: Settings, project: str, token: str
) -> None:
    if project != "default":
        make_project(database, project)
    with_token = settings.model_copy(update={"hub_token": SecretStr("hf_operators")})
    preview_id = make_preview(database, project, metadata={"stub.preview": "token"})
    maker(database, with_token).wake(preview_id, "worker-1")
    row = preview(database, preview_id)
    assert row.result is not None
    assert row.result["notices"] == [token]


@pytest.mark.usefixtures("processes")
def test_it_is_stopped_at_its_deadline(database: Database, settings: Settings) -> None:
    preview_id = make_preview(database, metadata={"stub.preview": "hang"})
    put_preview(database, preview_id, deadline_at=db_now(2))
    maker(database, settings).wake(preview_id, "worker-1")
    assert failure_of(database, preview_id)["code"] == "timeout"
    assert_nothing_left(database, settings)


@pytest.mark.usefixtures("processes")
def test_a_lost_claim_is_given_up_and_the_other_epoch_s_folder_stays(
    database: Database, settings: Settings
) -> None:
    """As after a freeze: another worker has begun meanwhile."""
    preview_id = make_preview(database, metadata={"stub.preview": "hang"})
    other = settings.workspace(preview_id) / "attempts" / "2"

    def take_over() -> None:
        put_preview(database, preview_id, lease_until=db_now(-1))
        with database.write() as session:
            preview_claims.LEASES.recover(session)
            assert preview_claims.claim(session, preview_id, "worker-2", 60) is not None
        other.mkdir()

    thread = meanwhile(take_over, when=lambda: is_claimed(database, settings, preview_id))
    short = settings.model_copy(update={"lease_seconds": 1.5})
    maker(database, short).wake(preview_id, "worker-1")
    thread.join()
    row = preview(database, preview_id)
    assert (row.state, row.epoch, row.worker_id) == ("running", 2, "worker-2")
    assert other.is_dir()
    assert not other.with_name("1").exists()
    assert children() == []


@pytest.mark.usefixtures("processes")
def test_a_worker_that_shuts_down_hands_it_to_another(
    database: Database, settings: Settings
) -> None:
    preview_id = make_preview(database, metadata={"stub.preview": "hang", "stub.attempts": "1"})
    shutdown = Shutdown()
    thread = meanwhile(shutdown.request, when=lambda: is_claimed(database, settings, preview_id))
    maker(database, settings, shutdown).wake(preview_id, "worker-1")
    thread.join()
    assert preview(database, preview_id).state == "queued"
    assert_nothing_left(database, settings)
    maker(database, settings).wake(preview_id, "worker-2")
    row = preview(database, preview_id)
    assert (row.state, row.epoch, row.worker_id) == ("succeeded", 2, "worker-2")


@pytest.mark.usefixtures("processes")
def test_messages_about_what_is_done_change_nothing(database: Database, settings: Settings) -> None:
    row = make(database, settings)
    for preview_id in (row.id, "preview-unknown"):
        maker(database, settings).wake(preview_id, "worker-2")
    assert preview(database, row.id).worker_id == "worker-1"


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
def test_a_machine_without_memory_ends_it_before_trainings(
    database: Database, settings: Settings, monkeypatch: pytest.MonkeyPatch
) -> None:
    """However little it uses itself; a stage of a job must use a part of what is kept free."""
    monkeypatch.setattr(memory, "free_bytes", lambda: 1)
    job_id = make_job(database)
    assert run(database, settings, job_id) is JobState.QUEUED  # the next stage
    preview_id = make_preview(database, metadata={"stub.preview": "hang"})
    maker(database, settings).wake(preview_id, "worker-1")
    failure = failure_of(database, preview_id)
    assert failure["code"] == "insufficient_resources"
    assert failure["action"].startswith("Ask for fewer rows, or try again when the machine")


@pytest.mark.usefixtures("processes")
@pytest.mark.skipif(sys.platform != "linux", reason="Linux only")
@pytest.mark.parametrize(("layers", "answer"), [("auto", "not there"), ("off", "there")])
def test_it_is_confined_like_prepare(
    database: Database, settings: Settings, layers: str, answer: str
) -> None:
    secret = settings.home / "secret"
    secret.parent.mkdir(exist_ok=True)
    secret.write_text("of the service")
    row = make(database, settings.model_copy(update={"sandbox": layers}), f"look:{secret}")
    assert row.result is not None
    assert row.result["notices"] == [answer]
