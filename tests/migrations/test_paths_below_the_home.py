"""0020: results of `prepare` name files by their place below the home."""

from collections.abc import Iterator
from typing import Any

import pytest

from service.store import schema
from service.store.database import Database
from tests.support.factories import make_job
from tests.support.job_rows import get, put

BEFORE = "0019"
KEY = "a" * 64


@pytest.fixture
def earlier(database: Database) -> Iterator[Database]:
    """Up to date again afterwards, since Postgres is shared."""
    schema.downgrade(database.engine, BEFORE)
    yield database
    schema.upgrade(database.engine)


def prepared(home: str, cache: str, tokenizer: str) -> dict[str, Any]:
    return {
        "prepared_dir": f"{home}{cache}prepared/{KEY}",
        "model_dir": f"{home}jobs/job-1/attempts/1/base_model",
        "tokenizer_dir": tokenizer,
        "base_job": {
            "name": "/job-2",
            "folder": f"{home}jobs/job-2/attempts/2/output",
            "finished": None,
        },
        "resume_source": None,
        "data_report": {"splits": {}},
    }


@pytest.mark.parametrize("cache", ["cache/", "cache/projects/project-1/"])
def test_paths_below_the_home_become_keys(earlier: Database, cache: str) -> None:
    foreign = "/somewhere/else"
    job_id, waiting = make_job(earlier), make_job(earlier)
    trained = {"output_dir": "attempts/2/output"}
    before = prepared("/srv/jobs/cache/home/", cache, foreign)
    put(earlier, job_id, results={"prepare": before, "train": trained})
    schema.upgrade(earlier.engine)
    expected = prepared("", cache, foreign)
    assert get(earlier, job_id).results == {"prepare": expected, "train": trained}
    assert get(earlier, waiting).results == {}
    schema.downgrade(earlier.engine, BEFORE)
    schema.upgrade(earlier.engine)
    assert get(earlier, job_id).results["prepare"] == expected
