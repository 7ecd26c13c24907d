"""Which limits of the running time an attempt has; test_supervisor.py lets one pass."""

from dataclasses import replace
from typing import Any

import pytest

from service.contract.states import Stage
from service.settings import Settings
from service.store.database import Database
from tests.support.factories import claim_job, make_job
from tests.support.store.databases import on_sqlite
from worker.supervision.stop_policy import _limits

DAY = 86400
DEFAULT, LONGEST = "FINETUNE_DEFAULT_TIMEOUT_SECONDS", "FINETUNE_LONGEST_TIMEOUT_SECONDS"
OF_JOB, OF_PREPARE = "timeout_seconds", "stage_timeout_seconds.prepare"


@on_sqlite
@pytest.mark.parametrize(
    ("stage", "own", "expected"),
    [
        (Stage.PREPARE, {}, {DEFAULT: 5 * DAY, LONGEST: 9 * DAY, OF_PREPARE: DAY / 4}),
        (Stage.PUBLISH, {}, {DEFAULT: 5 * DAY, "stage_timeout_seconds.publish": DAY / 4}),
        (Stage.TRAIN, {}, {DEFAULT: 5 * DAY, "stage_timeout_seconds.train": None}),
        # A limit of the job's own replaces the default, but not the longest time that there is.
        (Stage.PREPARE, {"timeout_seconds": 60}, {OF_JOB: 60, LONGEST: 9 * DAY, DEFAULT: None}),
        (Stage.PREPARE, {"stage_timeout_seconds": {"prepare": DAY}}, {OF_PREPARE: DAY}),
        (Stage.TRAIN, {"stage_timeout_seconds": {"train": 7}}, {"stage_timeout_seconds.train": 7}),
    ],
)
def test_the_jobs_own_or_else_the_operators(
    database: Database,
    settings: Settings,
    stage: Stage,
    own: dict[str, Any],
    expected: dict[str, float | None],
) -> None:
    """The time of earlier attempts counts: of all for the job's, of the stage's for the stage's."""
    limits = {"default_timeout_seconds": 5.0 * DAY, "longest_timeout_seconds": 9.0 * DAY}
    claim = replace(
        claim_job(database, make_job(database, **own)),
        stage=stage,
        used_seconds=99.5,
        stage_used_seconds=3.5,
    )
    found = {name: rest for name, *rest in _limits(claim, settings.model_copy(update=limits))}
    assert {name: found.get(name, [None])[0] for name in expected} == expected
    for name, (_, used) in found.items():
        assert used == (3.5 if name.startswith("stage_") else 99.5)
