"""Rows for tests of several tasks."""

from typing import Any

from tests.support.models import (
    save_tiny_bert,
    save_tiny_gpt2,
    save_tiny_llama,
    save_tiny_t5,
    save_tiny_xlnet,
)

QUESTION = {
    "id": "1",
    "question": "Who wrote it?",
    "context": "It was written by Ada.",
    "answers": {"text": ["Ada"], "answer_start": [18]},
}


TEXT = {"text": "the report of the water board was read by all who were there in the morning"}


LABELLED = {"text": "good or bad", "label": ["good", "bad"]}


WORDS = ["the report was written by Ada", "nobody knows who wrote it", "it was found in London"]


def question(number: int) -> dict[str, Any]:
    answer = {"text": ["was"], "answer_start": [WORDS[0].index("was")]}
    return {"id": str(number), "question": "what?", "context": WORDS[0], "answers": answer}


def text(number: int) -> str:
    return f"{WORDS[number % 3]} {number}"


def pair(number: int) -> dict[str, Any]:
    """A question with a better and a worse answer."""
    worse = WORDS[(number + 1) % 3]
    return {"prompt": f"what {number}?", "chosen": text(number), "rejected": worse}


# Task → (its parameters, a model, a row).
CASES: dict[str, tuple[dict[str, Any], Any, Any]] = {
    "question-answering": ({"max_seq_length": 64, "doc_stride": 8}, save_tiny_bert, question),
    "question-answering/beam-search": (
        {"max_seq_length": 64, "doc_stride": 8, "head": "beam-search"},
        save_tiny_xlnet,
        question,
    ),
    "causal-lm": ({"block_size": 8}, save_tiny_gpt2, lambda n: {"text": text(n)}),
    "masked-lm": ({"max_seq_length": 16}, save_tiny_bert, lambda n: {"text": text(n) * 2}),
    "text-classification": ({}, save_tiny_bert, lambda n: {"text": text(n), "label": n % 2}),
    "token-classification": (
        {},
        save_tiny_bert,
        lambda n: {"tokens": ["Ada", "wrote"], "tags": ["B-PER", "O"]},
    ),
    "summarization": (
        {"max_source_length": 16, "max_target_length": 8},
        lambda folder: save_tiny_t5(folder, WORDS * 3),
        lambda n: {"text": text(n), "summary": WORDS[n % 3]},
    ),
    "translation": (
        {"max_source_length": 16, "max_target_length": 8, "source_lang": "en", "target_lang": "de"},
        lambda folder: save_tiny_t5(folder, WORDS * 3),
        lambda n: {"source": text(n), "target": WORDS[n % 3]},
    ),
    "chat": (
        {"packing": "bfd", "generate": {"max_new_tokens": 8}},
        save_tiny_llama,
        lambda n: {"prompt": text(n), "completion": WORDS[n % 3]},
    ),
    "preference": ({"max_length": 128}, save_tiny_llama, pair),
    "reward": ({"max_length": 128}, save_tiny_llama, pair),
}
