"""A job that an earlier release accepted, although a rule of this one contradicts its spec."""

import json
from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.failures import Failure, FailureCode
from service.contract.spec.spec import JobSpec
from service.contract.stage.events import Notice
from service.contract.states import JobState
from service.jobs import commands
from service.jobs.dispatch import Dispatcher
from service.settings import Settings
from service.store.database import Database
from service.store.jobs import endings, lineage
from service.store.jobs.endings import Ending
from service.store.scope import EVERYTHING
from tests.stages.support import REQUEST, Running
from tests.support.factories import POLICY, claim_job, make_job, make_spec
from tests.support.store.job_rows import TRAINED, add_checkpoint, finished_job, get, put
from worker.inference.spec import of_prediction


@pytest.fixture
def settings(tmp_path: Path) -> Settings:
    return Settings(home=tmp_path / "home")


@pytest.fixture
def earlier_spec() -> dict[str, Any]:
    dataset = {"source": "hub", "name": "squad", "validation": "validation"}
    spec = make_spec(dataset=dataset, training={"eval_strategy": "epoch"}).model_dump(mode="json")
    spec["training"]["metric_for_best_model"] = "bleu"
    with pytest.raises(ValidationError, match="bleu"):
        JobSpec.model_validate(spec)
    return spec


def end(database: Database, job_id: str, ending: Ending) -> JobState | None:
    claimed = claim_job(database, job_id)
    with database.write() as session:
        return endings.end(session, job_id, claimed.epoch, ending, POLICY)


def test_it_runs_and_is_retried(
    database: Database, unreachable: Dispatcher, settings: Settings, earlier_spec: dict[str, Any]
) -> None:
    job_id = make_job(database)
    put(database, job_id, spec=earlier_spec)
    failure = Failure.from_code(FailureCode.UNREADABLE_ROW, "Row 7 has no answer.", row=7)
    assert end(database, job_id, Ending.failed(failure)) is JobState.FAILED
    assert commands.retry(database, unreachable, settings, EVERYTHING, job_id) is JobState.QUEUED
    assert end(database, job_id, Ending.finished({"rows": 3})) is JobState.QUEUED
    assert get(database, job_id).stage == "train"
    claimed = claim_job(database, job_id)
    assert claimed.spec.training.metric_for_best_model == "bleu"


def test_other_jobs_use_its_results(
    database: Database, unreachable: Dispatcher, settings: Settings, earlier_spec: dict[str, Any]
) -> None:
    job_id = finished_job(database)
    put(database, job_id, spec=earlier_spec)
    add_checkpoint(database, job_id, 10)
    with database.write() as session:
        assert lineage.model_of(session, EVERYTHING, job_id, None).path == TRAINED["output_dir"]
        assert lineage.checkpoint_of(session, EVERYTHING, job_id, 10).step == 10
        spec = lineage.spec_of(session, EVERYTHING, job_id)
    assert spec is not None
    assert spec.training.metric_for_best_model == "bleu"


@pytest.mark.usefixtures("processes")
def test_its_stages_start(tmp_path: Path, earlier_spec: dict[str, Any]) -> None:
    request = tmp_path / "request.json"
    request.write_text(json.dumps(REQUEST | {"spec": earlier_spec}))
    program = (
        "from service.contract.stage.events import Notice\n"
        "from worker.stages.base import run_stage\n"
        "def main(request, channel):\n"
        "    metric = request.spec.training.metric_for_best_model\n"
        "    channel.send(Notice(message=metric))\n"
        "run_stage(main)\n"
    )
    ended = Running(["-c", program, str(request)], tmp_path / "log", {}).wait()
    assert ended.status == 0, ended.log
    assert [event.message for event in ended.events if isinstance(event, Notice)] == ["bleu"]


def test_its_model_can_be_tried(tmp_path: Path) -> None:
    spec = make_spec().model_dump(mode="json")
    spec["task"] |= {"max_seq_length": 64, "doc_stride": 64}
    with pytest.raises(ValidationError, match="doc_stride"):
        JobSpec.model_validate(spec)
    tried = of_prediction(spec, tmp_path, tmp_path / "rows.jsonl", use_gpu=False)
    assert (tried.mode, tried.task.type) == ("predict", "question-answering")
