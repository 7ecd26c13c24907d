"""A training to interrupt, and the numbers that must not change by it."""

from service.contract.stage.stages import TrainResult
from tests.training.support.jobs import Job, Recorder, run

EVERY_STEP = {
    "num_train_epochs": 2.6,
    "per_device_train_batch_size": 4,
    "gradient_accumulation_steps": 3,  # 37 rows: 10 batches, 4 steps an epoch, the last of 1 batch
    "save_steps": 1,
    "eval_strategy": "steps",
    "eval_steps": 2,
}


STEPS = 11


def numbers(recorder: Recorder, after: int) -> dict[str, dict[int, float]]:
    names = ("loss", "grad_norm", "learning_rate")
    return {
        name: {s: v for s, v in recorder.train_values(name).items() if s > after} for name in names
    }


def assert_resumes(job: Job, step: int) -> tuple[TrainResult, Recorder]:
    """A second attempt from the checkpoint of `step` ends as the first, which is returned."""
    whole, recorder = run(job.request(1))
    resumed, again = run(job.request(2, resume_from=job.checkpoint(step)))
    assert resumed.weights_sha256 == whole.weights_sha256
    assert numbers(again, 0) == numbers(recorder, step)
    assert again.train_values("loss")
    return whole, recorder


def evaluations(recorder: Recorder, after: int) -> dict[int, dict[str, float]]:
    return {step: v for step, v in recorder.evaluations().items() if step > after}
