"""The train stage that makes a checkpoint the job's model: no step more, all else as after one."""

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from service.contract.stage.events import ArtifactWritten, CheckpointSaved, Metric, Progress
from service.contract.stage.stages import TrainResult
from tests.support.models import save_tiny_bert
from tests.tasks.samples import LABELLED
from tests.tasks.stages import StagedJob, job_of
from tests.training.support.jobs import Recorder, run

pytestmark = pytest.mark.usefixtures("trainings")

Trained = tuple[StagedJob, TrainResult, Recorder]
TRAINING = {
    "max_steps": 4,
    "save_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 1,
    "learning_rate": 1e-2,
}


@pytest.fixture(scope="module", params=[None, {"method": "lora", "r": 2, "merge": True}])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Trained:
    folder = tmp_path_factory.mktemp("job")
    rows = [{**LABELLED, "label": label} for label in (["good"], ["bad"], ["good", "bad"]) * 4]
    dataset = {"train": rows, "validation": rows, "test": rows}
    model = save_tiny_bert(folder / "model")
    job = job_of(folder, "text-classification", model, dataset, TRAINING, peft=request.param)
    result, recorder = job.train()
    return job, result, recorder


def promote(trained: Trained, step: int, attempt: int = 9) -> tuple[TrainResult, Recorder]:
    job, result, _ = trained
    request = job.request(attempt=attempt, resume_from=job.checkpoint(step))
    return run(request.model_copy(update={"promotes": True, "trained": result}))


def weights(job: StagedJob, result: TrainResult) -> dict[str, torch.Tensor]:
    return load_file(job.output(result) / "model.safetensors")


class TestPromotion:
    def test_the_model_is_that_of_the_step(self, trained: Trained) -> None:
        job, result, before = trained
        made, recorder = promote(trained, 2)
        assert (made.model_step, made.is_promoted) == (2, True)
        assert (made.steps, made.epochs) == (result.steps, result.epochs) == (4, result.epochs)
        assert not recorder.of(CheckpointSaved)
        assert [event.step for event in recorder.of(Metric) if event.kind == "train"] == []
        assert all(event.step <= 36 for event in recorder.of(Progress))  # rows of an evaluation
        assert made.weights_sha256 != result.weights_sha256
        assert made.output_dir == "attempts/9/output"
        assert (job.output(result)).is_dir()
        earlier = before.evaluations()[2]
        evaluated = {name: made.metrics[name] for name in earlier if "runtime" not in name}
        comparable = {name: value for name, value in earlier.items() if name in evaluated}
        slow = ("_per_second",)
        for name, value in comparable.items():
            if not name.endswith(slow):
                assert evaluated[name] == value, name
        assert made.metrics["train_loss"] == result.metrics["train_loss"]
        names = {event.name for event in recorder.of(ArtifactWritten)}
        assert names >= {"model/model.safetensors", "model/config.json", "predictions.json"}

    def test_the_steps_that_are_not_made_take_no_time(self, trained: Trained) -> None:
        job, _, _ = trained
        saved = json.loads((job.checkpoint(1) / "progress.json").read_text())["progress"]
        _, recorder = promote(trained, 1, attempt=15)
        expected = [event.eta_seconds for event in recorder.of(Progress)]
        assert None not in expected
        # The validation split and the test split, of as many rows.
        assert 0 == expected[-1] <= expected[0] <= 2 * saved["evaluation_seconds"]

    def test_promoting_the_last_step_gives_the_same_bytes(self, trained: Trained) -> None:
        _, result, _ = trained
        made, _ = promote(trained, 4, attempt=10)
        assert made.weights_sha256 == result.weights_sha256

    def test_again_in_another_attempt_it_is_the_same(self, trained: Trained) -> None:
        """As after a worker that was killed in the middle."""
        job, _, _ = trained
        one, _ = promote(trained, 3, attempt=11)
        two, _ = promote(trained, 3, attempt=12)
        assert one.weights_sha256 == two.weights_sha256
        assert all(torch.equal(v, weights(job, two)[n]) for n, v in weights(job, one).items())

    def test_of_a_training_that_came_to_no_result(self, trained: Trained) -> None:
        job, result, recorder = trained
        made, _ = promote((job, None, recorder), 1, attempt=13)  # type: ignore[arg-type]
        assert (made.model_step, made.steps, made.is_promoted) == (1, 1, True)
        assert made.baseline == result.baseline


def test_output_lies_in_the_attempts_own_folder(trained: Trained) -> None:
    made, _ = promote(trained, 1, attempt=14)
    assert Path(str(made.output_dir)).parts[:2] == ("attempts", "14")
