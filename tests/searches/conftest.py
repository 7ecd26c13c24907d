from collections.abc import Iterator
from typing import Any

import pytest
from sqlalchemy import select, update

from service.api.search_checks.trials import refusals
from service.contract.search.spec import SearchSpec
from service.contract.states import ENDED, JobState
from service.jobs import submissions
from service.jobs.dispatch import Dispatcher
from service.searches import commands
from service.searches.runner import SearchRunner
from service.settings import Settings
from service.store.database import Database, db_now
from service.store.tables.jobs import EventRow, JobRow, MetricRow
from service.store.tables.projects import DEFAULT_PROJECT, ProjectRow
from service.store.tables.searches import SearchReportRow, SearchRow, SearchTrialRow
from tests.searches.simulated_worker import SimulatedWorker, search_spec


class Bench:
    """A search with simulated workers, step by step."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.settings = settings
        self.dispatcher = Dispatcher(settings)
        self.runner = self.new_runner()
        self.worker = SimulatedWorker(database)
        self.insert = submissions.insert

    def new_runner(self) -> SearchRunner:
        """As after a crash: it remembers nothing."""
        return SearchRunner(self.database, self.dispatcher, self.settings, refusals)

    def submit(self, **changes: Any) -> str:
        spec = SearchSpec.model_validate(search_spec(**changes))
        return commands.submit(self.database, DEFAULT_PROJECT, spec).search_id

    def submit_template(self, template: dict[str, Any], **changes: Any) -> str:
        """With these sections of the template."""
        return self.submit(job=search_spec()["job"] | template, **changes)

    def turn(self) -> None:
        self.runner.step()
        self.worker.tick()

    def run(self, search_id: str, *, forgetful: bool = False, turns: int = 3000) -> SearchRow:
        """Until the search has ended. `forgetful`: a new runner for every pass."""
        for _ in range(turns):
            if forgetful:
                self.runner = self.new_runner()
            self.turn()
            row = self.row(search_id)
            if JobState(row.state) in ENDED:
                return row
        raise AssertionError(f"the search is still {row.state}: {row.counts} {row.waiting}")

    def row(self, search_id: str) -> SearchRow:
        with self.database.read() as session:
            return session.get_one(SearchRow, search_id)

    def trials(self, search_id: str) -> list[SearchTrialRow]:
        with self.database.read() as session:
            query = select(SearchTrialRow).where(SearchTrialRow.search_id == search_id)
            return list(session.scalars(query.order_by(SearchTrialRow.number)))

    def jobs(self) -> list[JobRow]:
        with self.database.read() as session:
            return list(session.scalars(select(JobRow).order_by(JobRow.id)))

    def waiting(self) -> list[JobRow]:
        return [job for job in self.jobs() if job.state == JobState.QUEUED]

    def events(self, job_id: str | None) -> list[EventRow]:
        with self.database.read() as session:
            query = select(EventRow).where(EventRow.job_id == job_id).order_by(EventRow.seq)
            return list(session.scalars(query))

    def steps_of(self, job_id: str) -> list[int]:
        """Of its evaluations."""
        with self.database.read() as session:
            query = select(MetricRow.step).where(MetricRow.job_id == job_id)
            return list(session.scalars(query.order_by(MetricRow.seq)))

    def tracked(self) -> None:
        """MLflow has all of every job."""
        with self.database.write() as session:
            session.execute(update(JobRow).values(tracking_final=True))

    def limit_queue(self, jobs: int) -> None:
        with self.database.write() as session:
            session.execute(update(ProjectRow).values(max_queued_jobs=jobs))

    def hurry(self) -> None:
        """What waits is looked at in the next turn."""
        with self.database.write() as session:
            session.execute(update(SearchRow).values(look_at=db_now(-1)))

    def reports(self, search_id: str) -> list[tuple[int, int, float | None, str]]:
        """Trial, resource, value and decision, in order."""
        with self.database.read() as session:
            query = select(SearchReportRow).where(SearchReportRow.search_id == search_id)
            rows = session.scalars(query.order_by(SearchReportRow.seq))
            return [(row.number, row.resource, row.value, row.decision) for row in rows]


@pytest.fixture
def bench(database: Database, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bench]:
    settings = Settings(home=tmp_path_factory.mktemp("home"), redis_url=None)
    bench = Bench(database, settings)
    yield bench
    bench.dispatcher.close()
