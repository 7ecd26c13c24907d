"""The same training by transformers' Trainer and by ours."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import transformers

from tests.training.support.jobs import Job, Recorder, TinyObjective, rows, run, tiny_model
from worker.tasks.base import PreparedSplit

TRAIN, VALIDATION = rows(22, seed=3), rows(5, seed=4)


class SavedSteps(transformers.TrainerCallback):
    def __init__(self) -> None:
        self.saved: list[int] = []

    def on_save(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self.saved.append(state.global_step)


def arguments(folder: Path, **options: Any) -> transformers.TrainingArguments:
    """Of a Trainer that computes on the CPU and writes nothing but what `options` ask for."""
    return transformers.TrainingArguments(
        output_dir=str(folder),
        use_cpu=True,
        report_to="none",
        disable_tqdm=True,
        dataloader_pin_memory=False,
        **options,
    )


def run_trainer(
    folder: Path, options: dict[str, Any], *callbacks: transformers.TrainerCallback
) -> tuple[transformers.Trainer, SavedSteps]:
    saved = SavedSteps()
    model = tiny_model(dropout=0.0)
    # Ours on a CPU. Another kernel rounds otherwise, and Adafactor makes the difference grow.
    model.set_attn_implementation("eager")
    trainer = transformers.Trainer(
        model=model,
        args=arguments(folder, train_sampling_strategy="sequential", **options),
        data_collator=TinyObjective({"train": PreparedSplit(TRAIN, TRAIN)}).collate,
        train_dataset=TRAIN,
        eval_dataset=VALIDATION,
        callbacks=[saved, *callbacks],
    )
    trainer.train()
    return trainer, saved


def run_both(
    make_job: Callable[..., Job], folder: Path, options: dict[str, Any]
) -> tuple[Recorder, list[dict[str, Any]], SavedSteps]:
    options = {"learning_rate": 1e-2, **options}
    trainer, saved = run_trainer(folder, options)
    job = make_job(train=TRAIN, validation=VALIDATION, dropout=0.0, **options)
    _, recorder = run(job.request())
    return recorder, trainer.state.log_history, saved
