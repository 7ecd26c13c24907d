"""Cleaned rows with their tokens, made while rows are checked."""

from collections.abc import Callable
from typing import Any

import numpy as np

from service.contract.tasks.chat import ChatSpec
from worker.data.table import RowError
from worker.tasks.chat import rows
from worker.tasks.chat.rendering import Renderer


def schema() -> dict[str, Any]:
    """The columns of cleaned rows with their tokens."""
    from datasets import List, Value

    tokens = {"input_ids": List(Value("int32")), "trained": List(Value("int8"))}
    return rows.example_schema() | tokens | {"without_thinking": Value("int32")}


def row_tokenizer(
    tokenizer: Any, parameters: ChatSpec, max_length: int, *, must_train: bool = True
) -> Callable[[dict[str, Any]], dict[str, Any]]:
    """A cleaned row → the row with `input_ids`, which are not cut, `trained`, and
    `without_thinking`: the number of turns that are trained without their thinking.

    RowError if its first `max_length` tokens train nothing, and it `must_train`.
    """
    renderer = Renderer(tokenizer, parameters)

    def tokenized(row: dict[str, Any]) -> dict[str, Any]:
        found = renderer.render(rows.load(row))
        trained = np.array(found.trained, dtype=np.int8)
        # The first token is never predicted.
        if must_train and not trained[1:max_length].any():
            raise RowError(_nothing(len(trained), trained, max_length), reason="nothing_to_train")
        ids = np.array(found.input_ids, dtype=np.int32)
        more = {"trained": trained, "without_thinking": found.without_thinking}
        return {**row, "input_ids": ids, **more}

    return tokenized


def _nothing(tokens: int, trained: Any, max_length: int) -> str:
    if not trained.any():
        return "the row trains no token: no turn of the assistant is left for `task.train_on`"
    first = int(np.flatnonzero(trained)[0])
    return (
        f"the row trains no token within the first {max_length:,} of its {tokens:,}: the first "
        f"trained one is number {first + 1:,}. Raise `task.max_length`, or shorten the row"
    )
