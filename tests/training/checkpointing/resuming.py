"""A training to interrupt, and the numbers that must not change by it."""

from tests.training.support import Recorder

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


def evaluations(recorder: Recorder, after: int) -> dict[int, dict[str, float]]:
    return {step: v for step, v in recorder.evaluations().items() if step > after}
