"""Runs a whole question-answering job as run_qa does: tokenize, train, save, evaluate. The
reference side of benchmarks/whole_job.py, in its own process. Prints one line of JSON.

    python -m benchmarks.reference_job --model DIR --train FILE --validation FILE --output DIR \\
        --steps 50 [--best] [--bf16]

`--best`: padded to the longest of a batch, windows of similar length in the same batch.
"""

import argparse
import json
import time
from functools import partial
from pathlib import Path
from typing import Any

import psutil
import transformers
from datasets import Dataset
from transformers import Trainer, TrainerCallback, TrainingArguments

from benchmarks import run_qa
from worker.tasks.question_answering.metrics import squad_v1

MAX_LENGTH = 384
STRIDE = 128

transformers.logging.set_verbosity_error()


class _FirstStep(TrainerCallback):
    """Seconds from the start of this process to the end of its first step."""

    seconds = 0.0

    def on_step_end(self, *_arguments: Any, **_more: Any) -> None:
        self.seconds = self.seconds or _age()


def _age() -> float:
    return time.time() - psutil.Process().create_time()


def main(options: argparse.Namespace) -> dict[str, float]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(options.model)
    model = transformers.AutoModelForQuestionAnswering.from_pretrained(options.model)
    train, validation = (run_qa.questions(path) for path in (options.train, options.validation))
    cut = partial(run_qa.windows, tokenizer=tokenizer, max_length=MAX_LENGTH, stride=STRIDE)
    features = [
        Dataset.from_list(rows).map(
            cut, batched=True, with_indices=True, remove_columns=list(rows[0])
        )
        for rows in (train, validation)
    ]
    first_step = _FirstStep()
    trainer = Trainer(
        model=model,
        args=_arguments(options),
        train_dataset=features[0],
        data_collator=run_qa.collator(
            tokenizer,
            None if options.best else MAX_LENGTH,
            ("start_positions", "end_positions"),
        ),
        callbacks=[first_step],
    )
    trained = trainer.train()
    trainer.save_model(str(options.output))
    logits = trainer.predict(features[1]).predictions
    answers = run_qa.choose_answers(validation, features[1], *logits)
    (options.output / "nbest.json").write_text(json.dumps(answers, indent=4))
    golds = {row["id"]: row["answers"]["text"] for row in validation}
    predictions = {key: found[0]["text"] for key, found in answers.items()}
    (options.output / "predictions.json").write_text(json.dumps(predictions, indent=4))
    metrics = squad_v1(golds, predictions)
    return {"first_step": first_step.seconds, "loss": trained.training_loss, **metrics}


def _arguments(options: argparse.Namespace) -> TrainingArguments:
    return TrainingArguments(
        output_dir=str(options.output),
        max_steps=options.steps,
        per_device_train_batch_size=8,
        logging_steps=options.steps,
        save_strategy="no",
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        bf16=options.bf16,
        train_sampling_strategy="group_by_length" if options.best else "random",
    )


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    for name in ("model", "train", "validation", "output"):
        parser.add_argument(f"--{name}", type=Path, required=True)
    parser.add_argument("--steps", type=int, required=True)
    parser.add_argument("--best", action="store_true")
    parser.add_argument("--bf16", action="store_true")
    print(json.dumps(main(parser.parse_args())))
