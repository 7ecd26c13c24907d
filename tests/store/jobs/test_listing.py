"""The list of jobs: every path of its query planner returns what a plain filter would."""

import random
from datetime import timedelta

import pytest

from service.contract.states import JobState
from service.store.database import Database
from service.store.jobs import listing
from service.store.jobs.listing import JobFilter, list_jobs
from service.store.scope import EVERYTHING
from service.store.tables.jobs import JobLabelRow, JobRow
from tests.api.factories import START, add_job, spec


def fill(database: Database, count: int) -> list[JobRow]:
    """Newest first; ids carry the same time as created_at."""
    dice = random.Random(7)
    for number in range(count):
        at = START + timedelta(minutes=number)
        labels = {"env": dice.choice("ab")} | ({"needle": "yes"} if number % 20 == 0 else {})
        add_job(
            database,
            id=f"job-{int(at.timestamp()) * 10**9:016x}{number:016x}",
            created_at=at,
            spec=spec(name=dice.choice(["x", "y"]), metadata=labels),
            state=dice.choice(["queued", "failed", "succeeded"]),
        )
    with database.read() as session:
        return list(session.query(JobRow).order_by(JobRow.id.desc()))


def matches(row: JobRow, wanted: JobFilter, after: str | None) -> bool:
    return (
        (after is None or row.id < after)
        and (not wanted.states or row.state in wanted.states)
        and wanted.task in (None, row.task)
        and wanted.name in (None, row.name)
        and all(row.metadata_.get(key) == value for key, value in wanted.metadata)
        and (wanted.created_after is None or row.created_at > wanted.created_after)
        and (wanted.created_before is None or row.created_at < wanted.created_before)
    )


class TestListJobs:
    def test_equals_a_plain_filter(
        self, database: Database, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr(listing, "_RARE", 8)
        rows = fill(database, 120)
        dice = random.Random(11)
        for _ in range(150):
            wanted = JobFilter(
                states=dice.choice([(), (JobState.FAILED,), (JobState.QUEUED, JobState.FAILED)]),
                task=dice.choice([None, None, "question-answering", "other"]),
                name=dice.choice([None, "x", "z"]),
                metadata=dice.choice(
                    [(), (("env", "a"),), (("needle", "yes"), ("env", "b")), (("env", "z"),)]
                ),
                created_after=dice.choice([None, START + timedelta(minutes=30)]),
                created_before=dice.choice([None, START + timedelta(minutes=90)]),
            )
            after = dice.choice([None, dice.choice(rows).id])
            expected = [row.id for row in rows if matches(row, wanted, after)]
            with database.read() as session:
                found, more = list_jobs(session, EVERYTHING, wanted, after=after, limit=10)
            assert [row.id for row in found] == expected[:10], wanted
            assert more == (len(expected) > 10)

    def test_a_deleted_job_leaves_no_label(self, database: Database) -> None:
        add_job(database, spec=spec(metadata={"a": "b"}))
        with database.write() as session:
            for row in session.query(JobRow):
                session.delete(row)
        with database.read() as session:
            assert session.query(JobLabelRow).count() == 0
