"""A stage of a job that uses up the machine, under the real supervisor."""

from typing import Any

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from tests.supervision.support import children, run
from tests.support.factories import make_job
from tests.support.servers import services
from tests.support.store.job_rows import failure_of as failure_of_job


def failure_of(
    database: Database, settings: Settings, bomb: str, **limits: float
) -> dict[str, Any]:
    """How the job ends whose `prepare` is this bomb; none of its processes is left."""
    job_id = make_job(database, metadata={"stub.prepare": f"bomb:{bomb}"})
    assert run(database, settings.model_copy(update=limits), job_id) is JobState.FAILED
    services.wait_until(lambda: children() == [], 5, "the end of all processes")
    return failure_of_job(database, job_id)
