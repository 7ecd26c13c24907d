"""`finetune usage`: the table and what its options ask for."""

import pytest

from service.store.database import Database
from service.store.tables.teams import UsageDayRow
from tests.cli.conftest import Cli
from tests.support.store.projects import make_project


@pytest.fixture
def used(store: Database) -> None:
    make_project(store, "search")
    hour = 3600 * 1_000_000
    with store.write() as session:
        for project, day, hours in (
            ("default", "2026-01-30", 1),
            ("default", "2026-01-31", 2),
            ("search", "2026-01-31", 3),
        ):
            session.add(
                UsageDayRow(
                    project_id=project,
                    day=day,
                    gpu_microseconds=hours * hour,
                    worker_microseconds=hour // 2,
                    attempts=4,
                    succeeded=3,
                    failed=1,
                    bytes_stored=2 * 1024**2,
                )
            )


class TestUsage:
    def days(self, cli: Cli, *options: str) -> list[tuple[str, str, float]]:
        found = cli("usage", "--json", *options).json()
        assert sorted(found) == ["data"]
        return [(day["day"], day["project"], day["gpu_seconds"]) for day in found["data"]]

    def test_days_and_projects(self, cli: Cli, used: None, api: str) -> None:
        month = ("--from", "2026-01-01", "--to", "2026-01-31")
        assert self.days(cli, *month) == [
            ("2026-01-30", "default", 3600),
            ("2026-01-31", "default", 7200),
            ("2026-01-31", "search", 10800),
        ]
        assert self.days(cli, *month, "--project", "search") == [("2026-01-31", "search", 10800)]
        assert self.days(cli, "--from", "2026-01-30", "--to", "2026-01-30") == [
            ("2026-01-30", "default", 3600)
        ]

    def test_the_table_has_hours_and_sizes(self, cli: Cli, used: None, api: str) -> None:
        lines = cli("usage", "--from", "2026-01-31", "--to", "2026-01-31").out.splitlines()
        assert lines[0].split() == [
            *("day", "project", "gpu_hours", "worker_hours", "attempts"),
            *("succeeded", "failed", "cancelled", "stored"),
        ]
        assert lines[2].split() == [
            *("2026-01-31", "search", "3.00", "0.50", "4", "3", "1", "0", "2.0", "MiB"),
        ]

    @pytest.mark.parametrize(
        ("options", "words"),
        [
            (("--from", "yesterday"), "query.from"),
            (("--project", "unknown"), "no project 'unknown'"),
        ],
    )
    def test_what_is_refused(
        self, cli: Cli, api: str, options: tuple[str, ...], words: str
    ) -> None:
        outcome = cli("usage", *options)
        assert (outcome.status, outcome.out) == (2, "")
        assert words in outcome.err
