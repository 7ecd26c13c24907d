"""GSM8K as rows: conversations, the same in other shapes, and preference pairs."""

import json
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any, Final

Row = dict[str, Any]
Turns = list[Row]

FOLDER: Final = Path(__file__).resolve().parents[3] / "shared" / "data" / "gsm8k"
"""Of `chat-train.jsonl`, `chat-test.jsonl` and `preferences.jsonl`, unless one is named."""

CALCULATOR: Final[Row] = {
    "type": "function",
    "function": {
        "name": "calculate",
        "description": "Works out an expression.",
        "parameters": {
            "type": "object",
            "properties": {"expression": {"type": "string", "description": "Such as 2 + 3."}},
            "required": ["expression"],
        },
    },
}


def read(folder: Path, name: str, count: int | None = None) -> list[Row]:
    with (folder / name).open(encoding="utf-8") as lines:
        return [json.loads(line) for line in islice(lines, count)]


def pairs(folder: Path, count: int | None = None) -> list[Row]:
    """The preference pairs as conversations of one turn."""
    rows = read(folder, "preferences.jsonl", count)
    return [
        {
            "prompt": [{"role": "user", "content": row["prompt"]}],
            "chosen": [{"role": "assistant", "content": row["chosen"]}],
            "rejected": [{"role": "assistant", "content": row["rejected"]}],
        }
        for row in rows
    ]


def _plain(first: Turns, _second: Turns) -> Row:
    return {"messages": first}


def _several(first: Turns, second: Turns) -> Row:
    closing = [
        {"role": "user", "content": "Merci ! Ça suffit, 谢谢 🙂"},
        {"role": "assistant", "content": "  De rien.\n\nשלום, até logo — ¡adiós!  "},  # noqa: RUF001
    ]
    return {"messages": [*first, *second, *closing]}


def _system(first: Turns, second: Turns) -> Row:
    instruction = {
        "role": "system",
        "content": "Answer step by step.\nEnd with #### and the number.",
    }
    return {"messages": [instruction, *first, *second]}


def _tools(first: Turns, second: Turns) -> Row:
    call = {"name": "calculate", "arguments": {"expression": "6 * 7"}}
    called = {
        "role": "assistant",
        "content": "",
        "tool_calls": [{"id": "call00001", "type": "function", "function": call}],
    }
    result = {"role": "tool", "name": "calculate", "tool_call_id": "call00001", "content": "42"}
    return {
        "messages": [first[0], called, result, first[1], *second],
        "tools": [CALCULATOR],
    }


def _thinking(first: Turns, second: Turns) -> Row:
    answer = {**first[1], "reasoning_content": "Let me see.\n\n6 * 7 = 42, I think."}
    return {"messages": [*second, first[0], answer]}


SHAPES: Final[dict[str, Callable[[Turns, Turns], Row]]] = {
    "plain": _plain,
    "several": _several,
    "system": _system,
    "tools": _tools,
    "thinking": _thinking,
}


def shaped(folder: Path, shapes: tuple[str, ...], count: int) -> list[Row]:
    """`count` conversations; every second one is plain, the others take the shapes in turn."""
    return list(islice(_shaped(read(folder, "chat-train.jsonl"), shapes), count))


def _shaped(rows: list[Row], shapes: tuple[str, ...]) -> Iterator[Row]:
    others = shapes[1:] or shapes
    for number in range(0, len(rows) - 1, 2):
        first, second = rows[number]["messages"], rows[number + 1]["messages"]
        shape = others[number // 4 % len(others)] if number % 4 else shapes[0]
        yield SHAPES[shape](first, second)
