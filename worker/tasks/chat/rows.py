"""Cleans the rows of conversations, in any of the forms that are in use, into one form."""

import json
from collections.abc import Callable, Mapping
from typing import Any, Final

from service.contract.failures import FailureCode
from service.contract.fields.types import TaskParametersModel
from service.contract.spec.splits import TEST
from worker.data.table import Row, RowError
from worker.tasks.chat.conversation import Conversation
from worker.tasks.chat.problems import Problems
from worker.tasks.chat.tool_calls import tools_of
from worker.tasks.chat.turns import Turn, json_text, require_answers, turn_of_text, turns_of
from worker.tasks.common.cells import kind_of

_FORMS: Final = {
    "`messages`": ("messages",),
    "`prompt` with `completion`": ("prompt", "completion"),
    "`instruction` with `output`": ("instruction", "output"),
}
"""The columns that make a form; the last of them is the answer, which rows to predict lack."""


def example_schema() -> dict[str, Any]:
    """The columns of a cleaned row; `messages` and `tools` are JSON text, or empty."""
    from datasets import Value

    return {"messages": Value("string"), "tools": Value("string"), "prompt": Value("int32")}


def load(example: Mapping[str, Any]) -> Conversation:
    """The conversation of a cleaned row."""
    tools = json.loads(example["tools"]) if example["tools"] else None
    return Conversation(json.loads(example["messages"]), tools, example["prompt"])


def without_tokens(examples: Any) -> Any:
    """A `datasets.Dataset` of cleaned rows with the columns that `load` needs."""
    return examples.select_columns(list(example_schema()))


class RowCleaner:
    """A row of one of the forms → the columns of `example_schema`. Reports all problems at once."""

    def __init__(self, split: str, parameters: TaskParametersModel) -> None:  # noqa: ARG002
        self._has_answers = split != TEST
        self.counts = {"no_system_message": 0, "no_user_message": 0}

    def __call__(self, row: Row) -> dict[str, Any]:
        given = {column: value for column, value in row.items() if value is not None}
        form = self._form(given)
        problems = Problems()
        turns, prompt = _READERS[form](given, problems)
        if self._has_answers:
            require_answers(turns, _FORMS[form][-1], problems)
        made = cleaned(turns, prompt, _tools(given, problems), problems)
        # What OpenAI's published checks warn of; the other forms have no turns of the system.
        if form == "`messages`":
            roles = {turn.get("role") for turn in turns}
            self.counts["no_system_message"] += roles.isdisjoint(("system", "developer"))
            self.counts["no_user_message"] += "user" not in roles
        return made

    def _form(self, given: Row) -> str:
        """The one form that the row has. Raises RowError without one, or with two."""
        complete = [
            form for form, columns in _FORMS.items() if all(map(given.__contains__, columns))
        ]
        if not complete and not self._has_answers:
            complete = [form for form, columns in _FORMS.items() if columns[0] in given]
        if len(complete) == 1:
            return complete[0]
        if complete:
            message = f"the row has {', and also '.join(complete)}: give one form"
            raise RowError(message, reason="two_forms")
        raise RowError(
            f"the row has no {', no '.join(_FORMS)}: give one of these forms, or name your columns "
            "in `dataset.columns`",
            FailureCode.MISSING_COLUMN,
            reason="missing_value",
        )


def cleaned(turns: list[Turn], prompt: int, tools: Any, problems: Problems) -> dict[str, Any]:
    """The cleaned row of `turns`; the first `prompt` turns are the prompt. Raises RowError."""
    texts = [json_text(turn, f"messages[{number}]", problems) for number, turn in enumerate(turns)]
    called = tools_of(tools, problems) if tools is not None else []
    described = json_text(called, "tools", problems) if called else ""
    problems.require_none()
    return {"messages": f"[{','.join(texts)}]", "tools": described, "prompt": prompt}


def side(value: Any, name: str, role: str, problems: Problems) -> list[Turn]:
    """A prompt or a completion: its turns, or a text that is one turn of `role`."""
    if isinstance(value, str):
        return [turn_of_text(value, role, name, problems)]
    if not isinstance(value, list | tuple):
        message = f"`{name}` must be text or a list of turns, not {kind_of(value)}"
        problems.add(message, "not_a_list")
        return []
    return turns_of(value, name, problems)


def _tools(given: Row, problems: Problems) -> Any:
    """`tools`, or `functions`, which OpenAI had before."""
    if "tools" in given and "functions" in given:
        problems.add("the row has both `tools` and `functions`: give `tools`", "malformed_tools")
    return given.get("tools", given.get("functions"))


def _messages(row: Row, problems: Problems) -> tuple[list[Turn], int]:
    """Of `messages` the prompt is what comes before the last answer."""
    turns = turns_of(row["messages"], "messages", problems)
    answers = [number for number, turn in enumerate(turns) if turn.get("role") == "assistant"]
    return turns, answers[-1] if answers else len(turns)


def _prompt_and_completion(row: Row, problems: Problems) -> tuple[list[Turn], int]:
    prompt = side(row["prompt"], "prompt", "user", problems)
    completion = row.get("completion")
    answer = side(completion, "completion", "assistant", problems) if completion is not None else []
    return prompt + answer, len(prompt)


def _instruction_and_output(row: Row, problems: Problems) -> tuple[list[Turn], int]:
    """Alpaca's form; the input follows the instruction after an empty line."""
    texts = {name: row.get(name, "") for name in ("instruction", "input", "output")}
    for name, text in texts.items():
        if not isinstance(text, str):
            problems.add(f"`{name}` must be text, not {kind_of(text)}", "not_text")
            return [], 0
    asked = "\n\n".join(filter(None, (texts["instruction"], texts["input"])))
    prompt = side(asked, "instruction", "user", problems)
    answer = side(texts["output"], "output", "assistant", problems) if "output" in row else []
    return prompt + answer, len(prompt)


_READERS: Final[dict[str, Callable[[Row, Problems], tuple[list[Turn], int]]]] = {
    "`messages`": _messages,
    "`prompt` with `completion`": _prompt_and_completion,
    "`instruction` with `output`": _instruction_and_output,
}
