"""Question answering as run_qa does it, for the reference sides of the benchmarks: rows, windows,
batches and answers, in plain Python. It imports nothing of the service, whose import time would be
counted.
"""

import json
from collections import defaultdict
from pathlib import Path
from typing import Any

import numpy as np
import torch

N_BEST = 20
LONGEST_ANSWER = 30


def questions(squad: Path) -> list[dict[str, Any]]:
    """The questions of a SQuAD v1.1 file, in its order."""
    return [
        {
            "id": question["id"],
            "question": question["question"],
            "context": paragraph["context"],
            "answers": {
                name: [answer[name] for answer in question["answers"]]
                for name in ("text", "answer_start")
            },
        }
        for article in json.loads(squad.read_text())["data"]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]


def windows(
    rows: dict[str, list[Any]],
    indices: list[int],
    *,
    tokenizer: Any,
    max_length: int,
    stride: int,
) -> dict[str, list[Any]]:
    """For `Dataset.map(batched=True, with_indices=True)`. Tokens outside the context have
    offset -1; an answer that is not completely in a window is placed at its first token."""
    encoded = tokenizer(
        rows["question"],
        rows["context"],
        truncation="only_second",
        max_length=max_length,
        stride=stride,
        return_overflowing_tokens=True,
        return_offsets_mapping=True,
    )
    columns = defaultdict(list)
    for window, row in enumerate(encoded["overflow_to_sample_mapping"]):
        kinds = encoded.sequence_ids(window)
        offsets = [
            pair if kind == 1 else (-1, -1)
            for pair, kind in zip(encoded["offset_mapping"][window], kinds, strict=True)
        ]
        first, last = _answer_tokens(offsets, rows["answers"][row])
        columns["input_ids"].append(encoded["input_ids"][window])
        columns["token_type_ids"].append(encoded["token_type_ids"][window])
        columns["offset_start"].append([begin for begin, _ in offsets])
        columns["offset_end"].append([end for _, end in offsets])
        columns["start_positions"].append(first)
        columns["end_positions"].append(last)
        columns["example"].append(indices[row])
    return dict(columns)


def _answer_tokens(offsets: list[tuple[int, int]], answers: dict[str, Any]) -> tuple[int, int]:
    begin = answers["answer_start"][0]
    end = begin + len(answers["text"][0])
    inside = [
        token for token, (first, last) in enumerate(offsets) if first < end and last > begin >= 0
    ]
    whole = inside and offsets[inside[0]][0] <= begin and offsets[inside[-1]][1] >= end
    return (inside[0], inside[-1]) if whole else (0, 0)


def collator(tokenizer: Any, max_length: int | None, labels: tuple[str, ...]) -> Any:
    """Padded to the maximum length, or to the longest of the batch."""

    def collate(features: list[dict[str, Any]]) -> Any:
        batch = tokenizer.pad(
            [{"input_ids": list(each["input_ids"])} for each in features],
            padding="max_length" if max_length else True,
            max_length=max_length,
            return_tensors="pt",
        )
        types = torch.zeros_like(batch["input_ids"])
        for row, each in enumerate(features):
            types[row, : len(each["token_type_ids"])] = torch.tensor(each["token_type_ids"])
        batch["token_type_ids"] = types
        for name in labels:
            batch[name] = torch.tensor([each[name] for each in features])
        return batch

    return collate


def choose_answers(
    examples: Any, features: Any, starts: Any, ends: Any
) -> dict[str, list[dict[str, Any]]]:
    """The best answers for each question: every pair of a window's best starts and best ends, in a
    plain Python loop."""
    of_example = defaultdict(list)
    for number, feature in enumerate(features):
        of_example[feature["example"]].append((number, feature))
    chosen = {}
    for index, example in enumerate(examples):
        found = []
        for number, feature in of_example[index]:
            found += _spans(feature, starts[number], ends[number])
        best = sorted(found, key=lambda span: span["score"], reverse=True)[:N_BEST]
        for span in best:
            first, last = span.pop("offsets")
            span["text"] = example["context"][first:last]
        best = best or [{"text": "", "score": 0.0}]
        weights = np.exp(np.array([span["score"] for span in best]) - best[0]["score"])
        for span, probability in zip(best, weights / weights.sum(), strict=True):
            span["probability"] = float(probability)
        chosen[example["id"]] = best
    return chosen


def _spans(feature: Any, starts: Any, ends: Any) -> list[dict[str, Any]]:
    first_characters, last_characters = feature["offset_start"], feature["offset_end"]
    best_starts, best_ends = (
        np.argsort(each)[: -N_BEST - 1 : -1].tolist() for each in (starts, ends)
    )
    spans = []
    for first in best_starts:
        for last in best_ends:
            if max(first, last) >= len(first_characters):
                continue
            if first_characters[first] < 0 or first_characters[last] < 0:
                continue  # Not part of the context.
            if last < first or last - first + 1 > LONGEST_ANSWER:
                continue
            spans.append(
                {
                    "offsets": (first_characters[first], last_characters[last]),
                    "score": float(starts[first] + ends[last]),
                    "start_logit": float(starts[first]),
                    "end_logit": float(ends[last]),
                }
            )
    return spans
