"""Measures resident memory over a long training of each task, with and without packing.

    python -m benchmarks.memory [question-answering masked-lm ...] [--steps 2000]
        [--evaluate-every 100] [--malloc auto|system|glibc|LIBRARY] [--threads N]

The train stage runs in the environment that a worker gives it, with evaluations in between. Batches
have random order and length, so that hardly two have the same shape. Models are 32 wide and from
scratch, texts half as long as usual: one to seven minutes each on one core. Printed are MiB at some
steps, the growth per step after the 200th (the slope of a line through means of 100 steps), threads
and open files at step 200 and at the end, processor time per step, and real tokens per second.
"""

import argparse
import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import psutil
import torch

from benchmarks.training_speed import EXAMPLES, Process, stage
from service.contract.stage.events import STAGE_EVENT, Finished, Metric, Progress
from service.contract.states import Stage
from tests.stages.support import Running, write_request
from tests.support.models import minilm_dir, save_tiny_t5
from worker.processes import allocator
from worker.training.memory.usage import TRIM_STEPS

MARKS: Final = (100, 200, 500, 1000, 2000)
SETTLED: Final = 200
"""By this step evaluations and checkpoints have run, and most sizes have occurred."""
WINDOW: Final = TRIM_STEPS
ROWS: Final = 2000
EVALUATED: Final = 64

MODELS: Final[dict[str, dict[str, Any]]] = {
    "bert": {"hidden_size": 32, "num_hidden_layers": 1, "num_attention_heads": 2,
             "intermediate_size": 64},
    "gpt2": {"n_embd": 32, "n_layer": 1, "n_head": 2, "n_positions": 128},
}  # fmt: skip
WIKITEXT: Final = ("wikitext/train.txt", "wikitext/validation.txt")
TASKS: Final[dict[str, tuple[str, tuple[str, str], dict[str, Any]]]] = {
    "question-answering": (
        "bert",
        ("squad/train-v1.1.json", "squad/validation-v1.1.json"),
        {"max_seq_length": 192, "doc_stride": 64},
    ),
    "masked-lm": ("bert", WIKITEXT, {"max_seq_length": 64, "line_by_line": True}),
    "causal-lm": ("gpt2", WIKITEXT, {"block_size": 64}),
    "text-classification": (
        "bert",
        ("classification/topics-train.jsonl", "classification/topics-long.jsonl"),
        {"max_seq_length": 64},
    ),
    "token-classification": (
        "bert",
        ("classification/answers-train.jsonl", "classification/answers-validation.jsonl"),
        {"max_seq_length": 64},
    ),
    "summarization": (
        "t5",
        ("seq2seq/summaries-train.jsonl", "seq2seq/summaries-validation.jsonl"),
        {"max_source_length": 128, "max_target_length": 32, "num_beams": 2},
    ),
    "translation": (
        "t5",
        ("seq2seq/translation-train.jsonl", "seq2seq/translation-validation.jsonl"),
        {"max_source_length": 32, "max_target_length": 32, "source_lang": "en",
         "target_lang": "reversed"},
    ),
}  # fmt: skip


@dataclass(frozen=True)
class Sample:
    step: int
    mebibytes: float
    cpu_seconds: float
    threads: int
    files: int
    tokens_per_second: float
    """Of the last steps that were logged."""


def model_of(kind: str, folder: Path) -> dict[str, Any]:
    if kind == "t5":
        texts = [(EXAMPLES / file).read_text() for file in TASKS["summarization"][1]]
        return {"name_or_path": str(save_tiny_t5(folder / "t5", texts))}
    config = {"model_type": kind, "config_overrides": MODELS[kind]}
    return {"config": config, "tokenizer_name": str(minilm_dir())}


def spec(name: str, folder: Path) -> dict[str, Any]:
    kind, (train, validation), parameters = TASKS[name]
    return {
        "task": {"type": name, **parameters},
        "model": model_of(kind, folder),
        "dataset": {
            "source": "path",
            "train": str(EXAMPLES / train),
            "validation": str(EXAMPLES / validation),
            "max_train_samples": ROWS,
            "max_eval_samples": EVALUATED,
        },
        "resources": {"gpus": 0},
    }


def training(steps: int, evaluate_every: int, *, packed: bool) -> dict[str, Any]:
    return {
        "max_steps": steps,
        "per_device_train_batch_size": 8,
        "logging_steps": 10,
        "eval_strategy": "steps",
        "eval_steps": evaluate_every,
        "save_strategy": "steps",
        "save_steps": evaluate_every,
        "save_total_limit": 1,
        **({} if packed else {"padding_free": False}),
    }


def environment(malloc: str, threads: int) -> dict[str, str]:
    """The environment of a worker's stage."""
    if malloc not in (allocator.SYSTEM, allocator.KEEPING):
        malloc = allocator.find(malloc, with_gpu=torch.cuda.is_available())
    process = Process(threads=threads, malloc=malloc)
    return process.environment(Stage.TRAIN, Path(tempfile.gettempdir()))


def trained(request: Path, variables: dict[str, str]) -> tuple[list[Sample], dict[str, float]]:
    """Run the stage; returns what it used at each progress event, and its metrics."""
    child = Running(
        ["-m", "worker.stages.train.stage", str(request)], request.parent / "log", variables
    )
    process = psutil.Process(child.process.pid)
    samples: list[Sample] = []
    ended, rate = None, float("nan")
    for line in child.events:
        ended = STAGE_EVENT.validate_json(line)
        if isinstance(ended, Metric):
            rate = ended.values.get("tokens_per_second", rate)
        elif isinstance(ended, Progress):
            samples.append(_sample(ended.step, process, rate))
    child.events.close()
    child.process.wait()
    if not isinstance(ended, Finished):
        raise SystemExit((request.parent / "log").read_text())
    return samples, ended.result["metrics"]


def _sample(step: int, process: psutil.Process, tokens_per_second: float) -> Sample:
    with process.oneshot():
        times = process.cpu_times()
        return Sample(
            step,
            process.memory_info().rss / 2**20,
            times.user + times.system,
            process.num_threads(),
            process.num_fds(),
            tokens_per_second,
        )


def growth(samples: list[Sample]) -> float:
    """MiB per step after SETTLED: the slope of a line through means of WINDOW steps, in which the
    stage returns free memory once."""
    windows: dict[int, list[float]] = {}
    for sample in samples:
        if SETTLED <= sample.step < samples[-1].step // WINDOW * WINDOW:
            windows.setdefault(sample.step // WINDOW, []).append(sample.mebibytes)
    if len(windows) < 3:
        return float("nan")
    means = [float(np.mean(window)) for window in windows.values()]
    return float(np.polyfit([number * WINDOW for number in windows], means, 1)[0])


def row(samples: list[Sample], metrics: dict[str, float]) -> str:
    def at(step: int) -> Sample:
        return next((sample for sample in samples if sample.step >= step), samples[-1])

    last = samples[-1]
    first, settled = at(10), at(min(SETTLED, last.step))
    cells = [f"{at(mark).mebibytes:.0f}" if mark <= last.step else "" for mark in MARKS]
    cells.append(f"{growth(samples):+.3f}")
    cells.append(f"{settled.threads}, {last.threads}")
    cells.append(f"{settled.files}, {last.files}")
    cpu = (last.cpu_seconds - first.cpu_seconds) / max(1, last.step - first.step)
    cells += [f"{1000 * cpu:.0f}", f"{metrics['train_tokens_per_second']:.0f}"]
    return " | ".join(cells)


def measure(name: str, folder: Path, options: argparse.Namespace) -> None:
    folder.mkdir()
    body = spec(name, folder)
    prepared = stage("prepare", folder / "prepare", body).result
    for packed in (True, False):
        how = "packed" if packed else "padded"
        given = training(options.steps, options.evaluate_every, packed=packed)
        request = write_request(
            folder / how,
            {**body, "training": given},
            stage="train",
            prepared=prepared,
            data_roots=[EXAMPLES],
            model_roots=[minilm_dir(), folder],
        )
        found = trained(request, environment(options.malloc, options.threads))
        print(f"| {name} | {how} | {row(*found)} |", flush=True)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n\n")[0])
    parser.add_argument("tasks", nargs="*", default="all", choices=[*TASKS, "all"])
    parser.add_argument("--steps", type=int, default=2000)
    parser.add_argument("--evaluate-every", type=int, default=100)
    parser.add_argument("--malloc", default=allocator.AUTO)
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    options = parser.parse_args()
    columns = [*(f"step {mark}" for mark in MARKS), "MiB/step", "threads", "files"]
    print(f"| task | batches | {' | '.join([*columns, 'CPU ms/step', 'tokens/s'])} |")
    print("|---" * (len(columns) + 4) + "|", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in TASKS if "all" in options.tasks else options.tasks:
            measure(name, Path(folder) / name, options)
    preloaded = environment(options.malloc, options.threads).get("LD_PRELOAD", "the C library's")
    print(f"malloc {preloaded}   load {os.getloadavg()[0]:.1f}")


if __name__ == "__main__":
    main()
