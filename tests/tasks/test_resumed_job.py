"""`training.resume_from` through the real `prepare`: all weights, and an adapter's."""

from pathlib import Path

import pytest

from service.contract.failures import FailureCode
from service.contract.stage.events import Notice
from service.contract.stage.stages import ResumeSource, TrainResult
from service.contract.states import Stage
from tests.support.models import save_tiny_bert
from tests.tasks.samples import TEXT
from tests.tasks.stages import StagedJob, job_of, write_rows
from tests.training.support.jobs import Recorder, fails_with, run
from worker.publishing import model_card
from worker.stages.prepare import stage
from worker.storage import atomic_dir

pytestmark = pytest.mark.usefixtures("trainings")

BASE = "job-00aa"
TRAINING = {"max_steps": 4, "save_steps": 1, "learning_rate": 1e-2}

Trained = tuple[StagedJob, TrainResult]


@pytest.fixture(scope="module", params=[None, {"method": "lora", "r": 2}], ids=["whole", "lora"])
def first(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("first")
    task, rows = {"type": "masked-lm", "max_seq_length": 16}, {"train": [TEXT] * 8}
    model = save_tiny_bert(folder / "model")
    job = job_of(folder, task, model, rows, TRAINING, peft=request.param)
    result, _ = job.train()
    return job, result


def source(job: StagedJob, step: int) -> ResumeSource:
    folder = job.checkpoint(step)
    return ResumeSource(
        job=BASE,
        step=step,
        folder=folder,
        sha256=atomic_dir.manifest_sha256(folder),
        data_fingerprint=job.prepared.data_fingerprint,
        model_revision=None,
    )


def prepared(job: StagedJob, taken: ResumeSource) -> Recorder:
    recorder = Recorder()
    request = job.request(Stage.PREPARE, attempt=1).model_copy(update={"resume_source": taken})
    job.prepared = stage.main(request, recorder)  # type: ignore[arg-type]
    return recorder


def test_the_new_job_ends_as_the_other_one(tmp_path: Path, first: Trained) -> None:
    other, whole = first
    job = StagedJob(tmp_path, other.body)
    recorder = prepared(job, source(other, 2))
    messages = [event.message for event in recorder.of(Notice)]
    assert f"Resumes from the checkpoint of step 2 of {BASE}" in messages
    taken = job.prepared.resume_source
    assert taken is not None
    assert taken.folder == job.workspace / "attempts" / "1" / "resume_from" / "2"
    made, again = run(job.request(attempt=2, resume_from=taken.folder))
    assert made.weights_sha256 == whole.weights_sha256
    assert made.metrics["train_loss"] == whole.metrics["train_loss"]
    assert again.checkpoint_steps() == [3, 4]
    request = job.request(Stage.PUBLISH, attempt=3).model_copy(update={"trained": made})
    card = model_card.render(request, job.prepared, made)
    assert f"The training continued that of job `{BASE}` from step 2 on." in card


def test_other_rows_end_it_before_the_training(tmp_path: Path, first: Trained) -> None:
    other, _ = first
    rows = {"source": "path", "train": write_rows(tmp_path / "text.jsonl", [TEXT] * 9)}
    job = StagedJob(tmp_path, {**other.body, "dataset": rows})
    with fails_with(FailureCode.INVALID_OPTION, "fingerprint of that job's prepared data"):
        prepared(job, source(other, 2))
