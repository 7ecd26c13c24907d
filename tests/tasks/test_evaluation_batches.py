"""The numbers of an evaluation do not depend on its batches: of each task, with rows of many
lengths, in batches of 1, 4 and 16, with and without padding."""

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import pytest
import torch
from transformers import AutoTokenizer

from service.contract.tasks import metrics
from service.contract.tasks.metric_directions import GREATER_IS_BETTER
from tests.support.models import (
    save_tiny_bert,
    save_tiny_gpt2,
    save_tiny_llama,
    save_tiny_t5,
    save_tiny_xlnet,
)
from tests.tasks.stages import job_of
from tests.training.support.jobs import Recorder, reset_accelerate
from worker.stages.train import stage
from worker.training.evaluation.evaluator import Evaluator
from worker.training.objective import Evaluation

pytestmark = pytest.mark.usefixtures("trainings")

Row = dict[str, Any]
SIZES: Final = (1, 4, 16)
WORDS: Final = [
    *("the", "report", "of", "the", "water", "board", "was", "read", "by", "Ada", "who", "wrote"),
    *("in", "London", "that", "all", "of", "it", "was", "found", "in", "the", "morning", "and"),
    *("that", "nobody", "knows", "who", "was", "there", "when", "they", "came", "to", "the"),
    *("river", "at", "night"),
]


def text(number: int) -> str:
    """3 to 27 words, so that every batch is ragged."""
    return " ".join(WORDS[number % 7 : number % 7 + 3 + number * 5 % 25])


def question(number: int) -> Row:
    context = f"In 18{number:02d} Ada wrote {text(number)}."
    return {
        "id": str(number),
        "question": "Who wrote it?" if number % 2 else "In which year was the report written?",
        "context": context,
        "answers": {"text": ["Ada"], "answer_start": [context.index("Ada")]},
    }


def maybe_answered(number: int) -> Row:
    row = question(number)
    return row if number % 3 else {**row, "answers": {"text": [], "answer_start": []}}


def tagged(number: int) -> Row:
    words = text(number).split()
    return {"tokens": words, "tags": ["B-PER" if word == "Ada" else "O" for word in words]}


def pair(number: int) -> Row:
    return {"prompt": text(number), "chosen": text(number + 3), "rejected": text(number + 8)}


def judged(number: int) -> Row:
    return {"prompt": text(number), "completion": text(number + 3), "label": number % 2 == 0}


def t5(folder: Path) -> Path:
    return save_tiny_t5(folder, [" ".join(WORDS)] * 3)


@dataclass(frozen=True)
class Case:
    task: Row
    base: Callable[[Path], Path]
    row: Callable[[int], Row]


def padding_llama(folder: Path) -> Path:
    tokenizer = AutoTokenizer.from_pretrained(save_tiny_llama(folder))
    tokenizer.pad_token = "<|im_end|>"
    tokenizer.save_pretrained(folder)
    return folder


QA: Final = {"type": "question-answering", "max_seq_length": 40, "doc_stride": 8}
LETTERS: Final = {"type": "question-answering", "max_seq_length": 256, "head": "beam-search"}
"""XLNet's tiny tokenizer has a token for each letter."""
SEQ2SEQ: Final = {"max_source_length": 48, "max_target_length": 8}  # generated greedily
CASES: Final[dict[str, Case]] = {
    "question-answering": Case(QA, save_tiny_bert, question),
    "question-answering v2": Case(
        {**QA, "version_2_with_negative": True}, save_tiny_bert, maybe_answered
    ),
    "question-answering, beam search": Case(LETTERS, save_tiny_xlnet, question),
    "question-answering, beam search v2": Case(
        {**LETTERS, "version_2_with_negative": True},
        save_tiny_xlnet,
        maybe_answered,
    ),
    "causal-lm": Case(
        {"type": "causal-lm", "packing": "bfd", "block_size": 48},
        save_tiny_gpt2,
        lambda n: {"text": text(n)},
    ),
    "masked-lm": Case(
        {"type": "masked-lm", "line_by_line": True},
        save_tiny_bert,
        lambda n: {"text": text(n)},
    ),
    "text-classification": Case(
        {"type": "text-classification"},
        save_tiny_bert,
        lambda n: {"text": text(n), "label": ["a", "b", "c"][n % 3]},
    ),
    "text-classification, decoder": Case(
        {"type": "text-classification"},
        padding_llama,
        lambda n: {"text": text(n), "label": ["a", "b", "c"][n % 3]},
    ),
    "text-classification, padded on the left": Case(
        {"type": "text-classification"},
        save_tiny_xlnet,
        lambda n: {"text": text(n), "label": ["a", "b", "c"][n % 3]},
    ),
    "regression": Case(
        {"type": "text-classification"},
        save_tiny_bert,
        lambda n: {"text": text(n), "label": n / 7},
    ),
    "token-classification": Case({"type": "token-classification"}, save_tiny_bert, tagged),
    "summarization": Case(
        {"type": "summarization", **SEQ2SEQ},
        t5,
        lambda n: {"text": text(n), "summary": text(n + 5)},
    ),
    "translation": Case(
        {"type": "translation", **SEQ2SEQ, "source_lang": "en", "target_lang": "de"},
        t5,
        lambda n: {"source": text(n), "target": text(n + 5)},
    ),
    "chat": Case(
        {
            "type": "chat",
            "max_length": 96,
            "generate": {"max_new_tokens": 8, "exact_match": "(.*)"},
        },
        save_tiny_llama,
        lambda n: {"prompt": text(n), "completion": text(n + 5)},
    ),
    "preference": Case({"type": "preference", "max_length": 120}, save_tiny_llama, pair),
    "preference, kto": Case(
        {"type": "preference", "loss_type": "kto", "max_length": 120}, save_tiny_llama, judged
    ),
    "reward": Case({"type": "reward", "max_length": 120}, save_tiny_llama, pair),
}


def set_up(case: Case, home: Path, *, padding_free: bool | None) -> Any:
    rows = [case.row(number) for number in range(18)]
    dataset = {"train": rows, "validation": rows}
    options = {"max_steps": 1, "padding_free": padding_free, "bf16": False}
    job = job_of(home, case.task, case.base(home / "base"), dataset, options)
    job.prepare()
    reset_accelerate()
    made: Any = stage.set_up(job.request(), Recorder())  # type: ignore[arg-type]
    return made


def evaluations(job: Any, folder: Path) -> dict[int, Evaluation]:
    """Size of the batches → what is found with it."""
    state, found = job.training.state, {}
    stage.begin(job)  # with the reference's log probabilities, of the untrained model
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():  # so that its numbers differ from token to token
        for parameter in state.bare_model.parameters():
            if parameter.ndim > 1:
                parameter.add_(torch.randn(parameter.shape, generator=generator) * 0.2)
    for size in SIZES:
        spec = job.request.spec.training.model_copy(update={"per_device_eval_batch_size": size})
        evaluator = Evaluator(
            state.accelerator,
            state.model,
            job.training.objective,
            spec,
            lambda: None,
            state.ranks,
        )
        result = evaluator("validation", folder / str(size))
        assert result is not None
        found[size] = result
    return found


PADDED: Final = ("question-answering v2", "causal-lm", "summarization")
"""The others compute with padding as one of these does."""
SELDOM: Final = (
    *("question-answering", "question-answering, beam search", "regression", "translation"),
    *("text-classification, decoder", "preference, kto", "reward"),
)
"""Others compute as they do."""


def _when(name: str, *, padded: bool) -> Any:
    is_heavy = name in SELDOM or (padded and name not in PADDED)
    marks = [pytest.mark.heavy] if is_heavy else []
    how = "padded" if padded else "without padding"
    return pytest.param(name, False if padded else None, marks=marks, id=f"{name}-{how}")


@pytest.mark.parametrize(
    ("name", "padding_free"),
    [_when(name, padded=padded) for name in CASES for padded in (False, True)],
)
def test_the_numbers_are_those_of_batches_of_one(
    name: str, padding_free: bool | None, tmp_path: Path
) -> None:
    job = set_up(CASES[name], tmp_path, padding_free=padding_free)
    found = evaluations(job, tmp_path)
    one = found[1].metrics
    assert one["eval_loss"] > 0
    for size in SIZES[1:]:
        assert found[size].metrics == pytest.approx(one, rel=1e-5, abs=1e-5), size
        assert_same_best(found[size], found[1])
    for metric in one:
        reported = metric.removeprefix("eval_")
        assert metrics.is_reported(job.request.spec.task, reported)
        assert reported in GREATER_IS_BETTER or reported.rpartition("_")[2] in GREATER_IS_BETTER


def assert_same_best(one: Evaluation, other: Evaluation) -> None:
    """Of question answering: the best answers with their probabilities."""
    name = "nbest_predictions.json"
    if name not in one.files:
        return
    mine, theirs = (json.loads(each.files[name].read_text()) for each in (one, other))
    assert mine.keys() == theirs.keys()
    for key in mine:
        assert [best["text"] for best in mine[key]] == [best["text"] for best in theirs[key]]
        for best, again in zip(mine[key], theirs[key], strict=True):
            assert best["probability"] == pytest.approx(again["probability"], abs=1e-5)
