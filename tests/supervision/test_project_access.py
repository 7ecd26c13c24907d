"""Which Hub token a job's stages are given, and what happens when the project has no room."""

from collections.abc import Iterator

import pytest
from pydantic import SecretStr

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from service.store.projects import secrets
from service.store.scope import Scope
from service.system.secret_box import SecretBox
from tests.supervision.support import run
from tests.support.factories import claim_job
from tests.support.hub import HubDouble
from tests.support.stages import account
from tests.support.store.databases import on_sqlite
from tests.support.store.job_rows import failure_of, get, history_of
from tests.support.store.projects import limit, make_job_of, make_project
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker

pytestmark = on_sqlite

OPERATORS, OWN = "hf_operators", "hf_own"


@pytest.fixture
def hub() -> Iterator[HubDouble]:
    with HubDouble({OPERATORS: {"the-operator"}, OWN: {"a-user"}}) as double:
        yield double


@pytest.fixture
def with_hub(settings: Settings, hub: HubDouble) -> Settings:
    token = SecretStr(OPERATORS)
    return settings.model_copy(update={"hub_token": token, "hub_endpoint": hub.url})


def set_secret(database: Database, settings: Settings, project: str, value: str) -> None:
    sealed = SecretBox(settings.secrets_file).seal(project, "mine", value)
    with database.write() as session:
        secrets.put(session, project, "mine", lambda: sealed)


def account_of(database: Database, settings: Settings, job_id: str) -> str | None:
    """Whose token the first stage had."""
    supervisor = Supervisor(database, settings, NullTracker(), command=account.command)
    supervisor.supervise(claim_job(database, job_id))
    file = settings.workspace(job_id) / "attempts" / "1" / "account"
    return file.read_text() if file.exists() else None


def text_of(settings: Settings, job_id: str) -> str:
    """All that the job's folder holds."""
    files = [path for path in settings.workspace(job_id).rglob("*") if path.is_file()]
    assert files
    return "".join(path.read_text(errors="replace") for path in files)


class TestToken:
    @pytest.mark.usefixtures("processes")
    def test_a_job_has_the_token_that_its_spec_names(
        self, database: Database, with_hub: Settings
    ) -> None:
        set_secret(database, with_hub, "default", OWN)
        job_id = make_job_of(database, "default", secrets={"hub_token": "mine"})
        assert account_of(database, with_hub, job_id) == "a-user"
        assert OWN not in text_of(with_hub, job_id)
        assert OWN not in str(get(database, job_id).spec)
        assert OWN not in str([event.data for event in history_of(database, job_id)])

    @pytest.mark.usefixtures("processes")
    def test_another_project_has_neither_the_operators_token_nor_its_downloads(
        self, database: Database, with_hub: Settings
    ) -> None:
        make_project(database, "other")
        mine, theirs = make_job_of(database, "default"), make_job_of(database, "other")
        assert account_of(database, with_hub, mine) == "the-operator"
        assert account_of(database, with_hub, theirs) is None
        cache = (with_hub.workspace(theirs) / "attempts" / "1" / "cache").read_text()
        assert cache == str(with_hub.cache_dir / "projects" / "other")

    def test_a_secret_of_another_project_is_as_if_it_did_not_exist(
        self, database: Database, with_hub: Settings
    ) -> None:
        make_project(database, "other")
        set_secret(database, with_hub, "default", OWN)
        job_id = make_job_of(database, "other", secrets={"hub_token": "mine"})
        assert account_of(database, with_hub, job_id) is None
        failure = failure_of(database, job_id)
        assert failure["code"] == "secret_unavailable"
        assert failure["message"] == "The project has no secret 'mine' any more."

    def test_a_deleted_secret_ends_the_job_until_it_is_set_again(
        self, database: Database, with_hub: Settings
    ) -> None:
        set_secret(database, with_hub, "default", OWN)
        job_id = make_job_of(database, "default", secrets={"hub_token": "mine"})
        with database.write() as session:
            secrets.remove(session, Scope("default"), "mine")
        assert run(database, with_hub, job_id) is JobState.FAILED
        assert failure_of(database, job_id)["code"] == "secret_unavailable"

    def test_a_row_that_was_moved_to_another_project_does_not_open(
        self, database: Database, with_hub: Settings
    ) -> None:
        """Whoever can write to the database but not read the key file."""
        make_project(database, "other")
        sealed = SecretBox(with_hub.secrets_file).seal("default", "mine", OWN)
        with database.write() as session:
            secrets.put(session, "other", "mine", lambda: sealed)
        job_id = make_job_of(database, "other", secrets={"hub_token": "mine"})
        assert account_of(database, with_hub, job_id) is None


@pytest.mark.usefixtures("processes")
class TestRoom:
    def test_no_stage_begins_while_the_project_stores_too_much(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job_of(database, "default")
        assert run(database, settings, job_id) is JobState.QUEUED
        assert run(database, settings, job_id) is JobState.QUEUED
        late = make_job_of(database, "default")
        limit(database, max_bytes=0)
        assert run(database, settings, late) is JobState.FAILED
        failure = failure_of(database, late)
        assert failure["code"] == "quota_exceeded"
        assert failure["details"]["limit"] == 0
        # What is finished is published all the same.
        assert get(database, job_id).stage == "publish"
        assert run(database, settings, job_id) is JobState.SUCCEEDED

    def test_a_training_that_writes_too_much_reports_it_once(
        self, database: Database, settings: Settings
    ) -> None:
        job_id = make_job_of(database, "default", metadata={"stub.seconds": "1"})
        assert run(database, settings, job_id) is JobState.QUEUED
        limit(database, max_bytes=1)
        assert run(database, settings, job_id) is JobState.QUEUED
        messages = [
            event.data["message"]
            for event in history_of(database, job_id)
            if event.type == "notice"
        ]
        assert sum("may store 1." in message for message in messages) == 1
