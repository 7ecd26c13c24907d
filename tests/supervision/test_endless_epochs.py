"""A job with `num_train_epochs: inf`, which releases without bounds took."""

import math
from pathlib import Path

import pytest

from service.contract.states import JobState
from service.settings import Settings
from service.store.database import Database
from tests.support.databases import on_sqlite
from tests.support.factories import claim_job, make_job
from tests.support.job_rows import get, put
from tests.support.models import minilm_dir
from tests.tasks.stages import write_rows
from worker.supervision.supervisor import Supervisor
from worker.tracking.trackers import NullTracker


@on_sqlite
@pytest.mark.heavy
@pytest.mark.parametrize(
    ("max_steps", "code"), [(-1, "invalid_option"), (2, None)], ids=["epochs", "steps"]
)
def test_it_ends_as_the_users_fault_or_runs(
    database: Database, settings: Settings, tmp_path: Path, max_steps: int, code: str | None
) -> None:
    rows = [{"text": f"{word} is what the {word} says"} for word in ("fox", "hen", "owl", "cat")]
    body = {
        "task": {"type": "masked-lm", "line_by_line": True},
        "model": {
            "config": {
                "model_type": "bert",
                "config_overrides": {"hidden_size": 48, "num_hidden_layers": 1},
            },
            "tokenizer_name": str(minilm_dir()),
        },
        "dataset": {"source": "path", "train": write_rows(tmp_path / "rows.jsonl", rows)},
        "training": {"max_steps": max_steps, "save_strategy": "no"},
        "resources": {"gpus": 0},
    }
    settings = settings.model_copy(
        update={"data_roots": [tmp_path], "model_roots": [minilm_dir().parent]}
    )
    job_id = make_job(database, **body)
    supervisor = Supervisor(database, settings, NullTracker())
    state = supervisor.supervise(claim_job(database, job_id))
    assert state is JobState.QUEUED, get(database, job_id).failure
    spec = get(database, job_id).spec
    put(
        database,
        job_id,
        spec={**spec, "training": {**spec["training"], "num_train_epochs": math.inf}},
    )
    state = supervisor.supervise(claim_job(database, job_id))
    log = (settings.workspace(job_id) / "job.log").read_text()
    failure = get(database, job_id).failure
    if code is None:
        assert state is JobState.QUEUED, log
    else:
        assert failure is not None, log
        assert failure["code"] == code, log
        assert failure["message"] == "`training.num_train_epochs` must be a finite number of epochs"
