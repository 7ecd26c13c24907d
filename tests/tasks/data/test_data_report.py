"""`data_report` of every task's kind of features, against lengths that its tokenizer gives."""

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoTokenizer

from tests.support.models import save_tiny_bert, save_tiny_gpt2, save_tiny_t5
from tests.tasks.stages import job_of
from tests.training.support.jobs import PLAIN

TEXTS = ["the report was read", "it was read by the board in the morning", "", "all were there"] * 3
LIMIT = 8


def report_of(home: Path, task: dict[str, Any], model: Path, rows: list[Any]) -> dict[str, Any]:
    """Of the training split."""
    report = job_of(home, task, model, {"train": rows}, PLAIN).prepare().data_report
    assert report is not None
    found: dict[str, Any] = report["splits"]["train"]
    assert found["rows_read"] == found["rows_used"] == len(rows)
    return found


def require_lengths(found: dict[str, Any], lengths: list[int]) -> None:
    """Of so few and so short texts that each bin of the histogram is one token wide."""
    counts = Counter(lengths)
    bins = [
        {"from": length, "to": length, "rows": counts[length]}
        for length in range(min(lengths), max(lengths) + 1)
    ]
    assert found["histogram"] == bins
    named = ("total", "min", "mean", "max")
    mean = round(sum(lengths) / len(lengths), 2)
    assert [found[name] for name in named] == [sum(lengths), min(lengths), mean, max(lengths)]
    ranked = sorted(lengths)
    assert ranked[0] <= found["p50"] <= found["p90"] <= found["p99"] == ranked[-1]


@pytest.mark.parametrize("kind", ["causal-lm", "masked-lm"])
def test_texts_that_are_joined_and_cut_into_blocks(tmp_path: Path, kind: str) -> None:
    save, option = save_tiny_gpt2, "block_size"
    if kind == "masked-lm":
        save, option = save_tiny_bert, "max_seq_length"
    model = save(tmp_path / "model")
    rows = [{"text": text} for text in TEXTS]
    found = report_of(tmp_path, {"type": kind, option: LIMIT}, model, rows)
    tokenizer = AutoTokenizer.from_pretrained(model)
    require_lengths(found["tokens"], [len(tokenizer(text).input_ids) for text in TEXTS])
    assert (found["truncated"], found["windows_per_example"]) == (0, None)


def test_texts_line_by_line(tmp_path: Path) -> None:
    model = save_tiny_bert(tmp_path / "model")
    task = {"type": "masked-lm", "max_seq_length": LIMIT, "line_by_line": True}
    found = report_of(tmp_path, task, model, [{"text": text} for text in TEXTS])
    tokenizer = AutoTokenizer.from_pretrained(model)
    lengths = [len(tokenizer(text).input_ids) for text in TEXTS]
    require_lengths(found["tokens"], lengths)
    assert found["truncated"] == sum(length > LIMIT for length in lengths) > 0
    assert found["windows_per_example"] == {"0": 3, "1": 9}


def test_words_with_tags(tmp_path: Path) -> None:
    model = save_tiny_bert(tmp_path / "model")
    words = [text.split() for text in TEXTS if text]
    rows = [{"tokens": each, "tags": ["O", *["X"] * (len(each) - 1)]} for each in words]
    found = report_of(
        tmp_path, {"type": "token-classification", "max_seq_length": LIMIT}, model, rows
    )
    tokenizer = AutoTokenizer.from_pretrained(model)
    lengths = [len(tokenizer(each, is_split_into_words=True).input_ids) for each in words]
    require_lengths(found["tokens"], lengths)
    assert found["truncated"] == sum(length > LIMIT for length in lengths) > 0
    assert found["windows_per_example"] == {"1": len(words)}


def test_texts_and_their_summaries(tmp_path: Path) -> None:
    texts = [text for text in TEXTS if text]
    model = save_tiny_t5(tmp_path / "model", texts)
    rows = [{"text": text, "summary": " ".join(text.split()[:3])} for text in texts]
    task = {"type": "summarization", "max_source_length": LIMIT, "max_target_length": 3}
    found = report_of(tmp_path, task, model, rows)
    tokenizer = AutoTokenizer.from_pretrained(model)
    sources = [len(tokenizer(row["text"]).input_ids) for row in rows]
    targets = [len(tokenizer(text_target=row["summary"]).input_ids) for row in rows]
    require_lengths(found["tokens"], sources)
    require_lengths(found["target_tokens"], targets)
    assert found["truncated"] == sum(length > LIMIT for length in sources) > 0
    assert found["targets_truncated"] == sum(length > 3 for length in targets) > 0
    assert found["windows_per_example"] == {"1": len(rows)}
