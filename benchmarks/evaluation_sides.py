"""The two sides of benchmarks/evaluation.py, each in its own process. Prints one line of JSON:
seconds of the model, seconds after it, and the metrics.

    python -m benchmarks.evaluation_sides ours REQUEST.json
    python -m benchmarks.evaluation_sides reference CASE.json
"""

import json
import math
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from time import perf_counter
from typing import Any

import torch
import transformers
from transformers import Trainer, TrainingArguments

from benchmarks.cases import Case
from benchmarks.reference import blocks_collator
from benchmarks.run_qa import choose_answers, collator
from service.contract.stages import StageRequest
from tests.training.support import Recorder
from worker.stages import train
from worker.tasks.base import load_splits
from worker.tasks.question_answering.metrics import squad_v1
from worker.training import precision

transformers.logging.set_verbosity_error()
transformers.utils.logging.disable_progress_bar()


# ---- ours ---------------------------------------------------------------------------------------


class _Timed:
    """A forward function, and the seconds that its batches took."""

    def __init__(self, forward: Callable[..., Iterator[Any]]) -> None:
        self._forward = forward
        self.seconds = 0.0

    def __call__(self, *arguments: Any, **options: Any) -> Iterator[Any]:
        batches = self._forward(*arguments, **options)
        while True:
            start = perf_counter()
            batch = next(batches, None)
            self.seconds += perf_counter() - start
            if batch is None:
                return
            yield batch


def ours(request: Path) -> dict[str, float]:
    """The train stage's own evaluation, of the model before its first step."""
    loaded = StageRequest.model_validate_json(request.read_text())
    job = train.set_up(loaded, Recorder())  # type: ignore[arg-type]
    evaluator: Any = job.validation.evaluator
    evaluator.forward = timed = _Timed(evaluator.forward)
    start = perf_counter()
    result = job.validation()
    seconds = perf_counter() - start
    assert result is not None, "nothing interrupts this evaluation"
    return {
        "model": timed.seconds,
        "after": seconds - timed.seconds,
        **{name: result.metrics[f"eval_{name}"] for name in ("exact_match", "f1")},
    }


# ---- the reference ------------------------------------------------------------------------------


def reference(case: Case) -> dict[str, float]:
    tokenizer = transformers.AutoTokenizer.from_pretrained(case.tokenizer_dir)
    split = load_splits(case.prepared_dir)["validation"]
    arguments = TrainingArguments(
        output_dir=str(case.folder / "trainer"),
        per_device_eval_batch_size=case.batch_size,
        report_to="none",
        disable_tqdm=True,
        use_cpu=True,
        remove_unused_columns=False,
        bf16=case.best and precision.cpu_has_bf16(),
    )
    trainer = Trainer(
        model=transformers.AutoModelForQuestionAnswering.from_pretrained(case.model_dir),
        args=arguments,
        data_collator=collator(tokenizer, None if case.best else case.max_length, ()),
    )
    start = perf_counter()
    logits = trainer.predict(split.features).predictions
    predicted = perf_counter()
    answers = choose_answers(split.examples, split.features, *logits)
    with (case.folder / "nbest.json").open("w") as file:
        json.dump(answers, file, indent=4)
    predictions = {key: found[0]["text"] for key, found in answers.items()}
    with (case.folder / "predictions.json").open("w") as file:
        json.dump(predictions, file, indent=4)
    golds = {row["id"]: row["answers"]["text"] for row in split.examples}
    metrics = squad_v1(golds, predictions)
    return {"model": predicted - start, "after": perf_counter() - predicted, **metrics}


def perplexity(case: Case) -> dict[str, float]:
    """The perplexity in float32 on the validation features, with the same masks for every seed."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(case.tokenizer_dir)
    transformers.set_seed(0)
    mlm = case.name == "mlm"
    auto = transformers.AutoModelForMaskedLM if mlm else transformers.AutoModelForCausalLM
    model = auto.from_pretrained(case.model_dir).eval()
    collate = blocks_collator(tokenizer, mlm=mlm)
    features = load_splits(case.prepared_dir)["validation"].features
    total, count = 0.0, 0
    for start in range(0, len(features), case.batch_size):
        rows = range(start, min(start + case.batch_size, len(features)))
        batch = collate([features[row] for row in rows])
        labels = batch["labels"] if mlm else batch["labels"][:, 1:]
        asked = int((labels != -100).sum())
        with torch.no_grad():
            total += float(model(**batch).loss) * asked
        count += asked
    return {"perplexity": math.exp(total / count)}


if __name__ == "__main__":
    side, path = sys.argv[1], Path(sys.argv[2])
    print(json.dumps(ours(path) if side == "ours" else reference(Case.read(path))))
