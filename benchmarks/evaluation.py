"""Compares the evaluation of a question-answering model with `transformers.Trainer` and run_qa.

    python -m benchmarks.evaluation [--questions 1000] [--steps 60] [--pairs 3] [--threads 2]

MiniLM is trained for `--steps` steps, so that it has answers to choose among, and is then evaluated
on questions of the same file: the time is what matters here, not what the model has learned. Exact
match and F1 of both sides are printed with the times. The references choose answers as run_qa does:
the Trainer with run_qa's defaults (fp32, padded to 384), and with its best settings (bf16 if the
processor has it, padded to the longest of the batch). Each pair runs ours and the reference in
turn, each in its own process, by default with all cores; loading the model is not counted. "After
the model" are the seconds from logits to answers, files and metrics.
"""

import argparse
import json
import os
import statistics
import tempfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks import run_qa
from benchmarks.cases import Case
from benchmarks.training_speed import EXAMPLES, LENGTHS, program, spec, stage
from tests.stages.support import write_request
from tests.support.models import minilm_dir

SIDES = "benchmarks.evaluation_sides"
SQUAD = EXAMPLES / "squad" / "train-v1.1.json"


def write_questions(path: Path, count: int) -> None:
    """The first `count` questions of the example data, as rows."""
    rows = run_qa.questions(SQUAD)
    path.write_text("".join(json.dumps(row) + "\n" for row in rows[:count]))


def trained_model(folder: Path, steps: int, threads: int) -> Path:
    training = {
        "max_steps": steps,
        "per_device_train_batch_size": 16,
        "learning_rate": 5e-4,
        "save_strategy": "no",
        "train_sampling_strategy": "group_by_length",
    }
    body = spec("qa", training)
    prepared = stage("prepare", folder / "prepare", body, threads).result
    ended = stage("train", folder / "train", body, threads, prepared=prepared)
    return folder / "train" / str(ended.result["output_dir"])


def prepared(folder: Path, steps: int, questions: int, threads: int) -> tuple[Case, Path]:
    """The case of the reference, and the request that our side loads."""
    write_questions(folder / "questions.jsonl", questions)
    model = trained_model(folder, steps, threads)
    body = spec("qa", {"save_strategy": "no"}, model)
    file = str(folder / "questions.jsonl")
    body["dataset"] = {"source": "path", "train": file, "validation": file}
    result = stage("prepare", folder / "prepare-questions", body, threads).result
    case = Case(
        name="qa",
        best=False,
        steps=steps,
        batch_size=8,
        max_length=LENGTHS["qa"],
        learning_rate=0.0,
        from_scratch=False,
        folder=folder,
        prepared_dir=Path(result["prepared_dir"]),
        model_dir=Path(result["model_dir"]),
        tokenizer_dir=Path(result["tokenizer_dir"]),
    )
    roots: dict[str, Any] = {"data_roots": [folder], "model_roots": [folder, minilm_dir()]}
    request = write_request(folder / "ours", body, stage="train", prepared=result, **roots)
    return case, request


def compare(case: Case, request: Path, options: argparse.Namespace) -> None:
    for best in (False, True):
        theirs_case = replace(case, best=best).write()
        rows = [
            (
                program(SIDES, "ours", str(request), threads=options.threads),
                program(SIDES, "reference", str(theirs_case), threads=options.threads),
            )
            for _ in range(options.pairs)
        ]
        ratios = [_total(theirs) / _total(mine) for mine, theirs in rows]
        label = "Trainer at its best" if best else "reference's defaults"
        thousands = options.questions / 1000
        print(
            f"against the {label:21} {statistics.median(ratios):5.2f} "
            f"({min(ratios):.2f} to {max(ratios):.2f})   s per 1,000 questions "
            f"{_median(rows, 0, _total) / thousands:.1f} : "
            f"{_median(rows, 1, _total) / thousands:.1f}, of these after the model "
            f"{_median(rows, 0, _after) / thousands:.2f} : "
            f"{_median(rows, 1, _after) / thousands:.2f}   EM {rows[-1][0]['exact_match']:.2f} : "
            f"{rows[-1][1]['exact_match']:.2f}   F1 {rows[-1][0]['f1']:.2f} : "
            f"{rows[-1][1]['f1']:.2f}",
            flush=True,
        )


def _total(said: dict[str, float]) -> float:
    return said["model"] + said["after"]


def _after(said: dict[str, float]) -> float:
    return said["after"]


def _median(rows: Any, place: int, of: Callable[[Any], float]) -> float:
    return statistics.median(of(row[place]) for row in rows)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("--questions", type=int, default=1000)
    parser.add_argument("--steps", type=int, default=60)
    parser.add_argument("--pairs", type=int, default=3)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        case, request = prepared(Path(folder), options.steps, options.questions, options.threads)
        compare(case, request, options)


if __name__ == "__main__":
    main()
