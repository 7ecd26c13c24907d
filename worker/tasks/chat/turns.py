"""The turns of a conversation, checked and brought into one form.

The checks are those that OpenAI publishes for its chat format, and ours. Every problem of a row is
collected in `Problems`.
"""

import difflib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from worker.data.text import json_fault
from worker.tasks.chat import tool_calls
from worker.tasks.chat.problems import Problems
from worker.tasks.common.cells import kind_of

Turn = dict[str, Any]
MOST_TURNS: Final = 10_000
ROLES: Final = ("system", "developer", "user", "assistant", "tool", "function")
_KEYS: Final = (
    *("role", "content", "name", "weight", "tool_calls", "tool_call_id", "function_call"),
    *("reasoning_content", "reasoning", "thinking"),
)
_THINKING: Final = ("reasoning_content", "thinking", "reasoning")
_SHAREGPT: Final = {"human": "user", "gpt": "assistant"}
"""Roles of ShareGPT's `{from, value}` that have other names here."""
_USUAL_NAMES: Final = {**_SHAREGPT, "bot": "assistant", "model": "assistant", "ai": "assistant"}
_MAY_BE_EMPTY: Final = ("system", "developer", "tool")
_SHOWN: Final = 40
"""Characters of an unknown name that are repeated."""


def turns_of(value: Any, name: str, problems: Problems) -> list[Turn]:
    """The turns of a list of messages, or of its JSON text, as CSV has it; `name` is the column's.

    Each has `role`, and if given `content` (text), `name`, `weight` (only 0), `tool_calls`,
    `tool_call_id` and `reasoning_content`.
    """
    if isinstance(value, str) and value.lstrip().startswith("["):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            problems.add(f"`{name}` is {json_fault(error)}", "not_a_list")
            return []
    if not isinstance(value, list | tuple):
        problems.add(f"`{name}` must be a list of turns, not {kind_of(value)}", "not_a_list")
        return []
    if len(value) > MOST_TURNS:
        message = f"`{name}` has {len(value):,} turns, more than {MOST_TURNS:,}"
        problems.add(message, "too_many_turns")
        return []
    if not value:
        problems.add(f"`{name}` has no turns", "no_turns")
    checks = _Checks(problems)
    return [checks.turn(each, f"{name}[{number}]") for number, each in enumerate(value)]


def turn_of_text(text: str, role: str, name: str, problems: Problems) -> Turn:
    """The one turn that the text of a column is; `name` is the column's."""
    return _Checks(problems).turn({"role": role, "content": text}, name)


def require_answers(turns: Sequence[Turn], name: str, problems: Problems) -> None:
    """Reports a conversation that teaches nothing, if nothing else can be the reason."""
    answers = [turn for turn in turns if turn.get("role") == "assistant"]
    if not answers and not problems.found:
        problems.add(f"`{name}` has no turn of the assistant", "no_assistant_turn")
    elif answers and not any(turn.get("weight", 1) for turn in answers):
        problems.add(f"`{name}`: each turn of the assistant has weight 0", "nothing_to_train")


def json_text(value: Any, name: str, problems: Problems) -> str:
    """JSON in valid Unicode; "null" after a problem."""
    try:
        text = json.dumps(value, ensure_ascii=False, allow_nan=False)
        text.encode()
    except RecursionError:
        problems.add(f"`{name}` is nested too deeply", "nested_too_deeply")
    except UnicodeEncodeError as error:
        problem = f"`{name}` is not valid Unicode: {error.reason}"
        problems.add(problem, "invalid_unicode")
    except (TypeError, ValueError) as error:
        problems.add(f"`{name}` holds something that is not JSON: {error}", "invalid_value")
    else:
        return text
    return "null"


@dataclass
class _Checks:
    """Checks the turns of one conversation in order."""

    problems: Problems
    calls: bool = False
    """Whether the turn before is a call of a tool, or the result of one."""
    call_ids: set[str] = field(default_factory=set)

    def turn(self, value: Any, place: str) -> Turn:
        if not isinstance(value, Mapping):
            self._add(f"{place} must be an object, not {kind_of(value)}", "not_an_object")
            return {}
        given = _renamed({key: item for key, item in value.items() if item is not None})
        self._check_keys(given, place)
        turn: Turn = {}
        if (role := self._role(given, place)) is not None:
            turn["role"] = "tool" if role == "function" else role
        for key in ("name", "tool_call_id"):
            if key in given and self._is_text(given[key], f"{place}.{key}"):
                turn[key] = given[key]
        thinking = next((key for key in _THINKING if key in given), None)
        if thinking is not None and self._is_text(given[thinking], f"{place}.{thinking}"):
            turn["reasoning_content"] = given[thinking]
        self._add_calls(turn, given, place)
        self._add_weight(turn, given, place)
        self._add_content(turn, given, place)
        self._follow_calls(turn, place)
        return turn

    def _check_keys(self, given: Mapping[str, Any], place: str) -> None:
        for key in given:
            if key not in _KEYS:
                near = difflib.get_close_matches(str(key)[:_SHOWN], _KEYS, 1)
                hint = f"did you mean `{near[0]}`?" if near else f"turns have {', '.join(_KEYS)}"
                self._add(f"{place} has the unknown key {key[:_SHOWN]!r}; {hint}", "unknown_key")

    def _role(self, given: Mapping[str, Any], place: str) -> str | None:
        if "role" not in given:
            self._add(f"{place} has no `role`", "missing_role")
            return None
        role = given["role"]
        if not self._is_text(role, f"{place}.role"):
            return None
        if role in ROLES:
            return str(role)
        shown = role[:_SHOWN]
        near = _USUAL_NAMES.get(shown.lower()) or next(
            iter(difflib.get_close_matches(shown.lower(), ROLES, 1)), None
        )
        hint = f"did you mean {near!r}?" if near else f"roles are {', '.join(ROLES)}"
        self._add(f"{place} has the unknown role {shown!r}; {hint}", "unknown_role")
        return None

    def _add_calls(self, turn: Turn, given: Mapping[str, Any], place: str) -> None:
        calls: list[dict[str, Any]] = []
        if given.get("tool_calls"):
            calls = tool_calls.calls_of(given["tool_calls"], f"{place}.tool_calls", self.problems)
        elif "function_call" in given:
            called = given["function_call"]
            calls = [tool_calls.call_of(called, f"{place}.function_call", self.problems)]
        if calls and turn.get("role", "assistant") != "assistant":
            self._add(f"{place}: only the assistant calls tools", "malformed_tool_calls")
        if calls:
            turn["tool_calls"] = calls

    def _add_weight(self, turn: Turn, given: Mapping[str, Any], place: str) -> None:
        weight = given.get("weight", 1)
        if not isinstance(weight, int | float) or weight not in (0, 1):
            is_number = isinstance(weight, int | float)
            shown = repr(weight)[:_SHOWN] if is_number else kind_of(weight)
            self._add(f"{place}.weight must be 0 or 1, not {shown}", "invalid_weight")
        elif weight == 0 and turn.get("role") == "assistant":
            turn["weight"] = 0

    def _add_content(self, turn: Turn, given: Mapping[str, Any], place: str) -> None:
        content = given.get("content")
        if isinstance(content, list | tuple):
            content = self._joined(content, f"{place}.content")
        elif content is not None and not isinstance(content, str):
            message = f"{place}.content must be text or a list of parts, not {kind_of(content)}"
            self._add(message, "invalid_content")
            return
        if content is not None:
            turn["content"] = content
        role = turn.get("role")
        if given.get("tool_calls") or "function_call" in given or role is None:
            return
        if content is None:
            self._add(f"{place} has no `content`", "missing_content")
        elif _is_blank(given["content"]) and role not in _MAY_BE_EMPTY and turn.get("weight", 1):
            reason = "empty_assistant_turn" if role == "assistant" else "missing_content"
            self._add(f"{place}: the {role}'s turn is empty", reason)

    def _joined(self, parts: Sequence[Any], place: str) -> str:
        """The text of all parts, one after the other with nothing in between."""
        texts = []
        for number, part in enumerate(parts):
            kind = part.get("type") if isinstance(part, Mapping) else None
            if kind != "text":
                message = f"{place}[{number}]: only parts {{type: text, text: …}} are supported"
                found = f", not {str(kind)[:_SHOWN]!r}" if kind is not None else ""
                self._add(message + found, "unsupported_content")
            elif self._is_text(part.get("text"), f"{place}[{number}].text"):
                texts.append(part["text"])
        return "".join(texts)

    def _follow_calls(self, turn: Turn, place: str) -> None:
        """A tool's result follows a call, or the result of another call of the same turn."""
        role = turn.get("role")
        if role == "tool" and not self.calls:
            self._add(f"{place}: no call of a tool comes before this result", "unexpected_result")
        elif role == "tool":
            identity = turn.get("tool_call_id")
            if identity is not None and self.call_ids and identity not in self.call_ids:
                message = f"{place}.tool_call_id {identity[:_SHOWN]!r} is of no call before it"
                self._add(message, "unexpected_result")
        elif role is not None:
            calls = turn.get("tool_calls", ())
            self.calls = bool(calls)
            self.call_ids = {str(call["id"]) for call in calls if "id" in call}

    def _is_text(self, value: Any, place: str) -> bool:
        if isinstance(value, str):
            return True
        self._add(f"{place} must be text, not {kind_of(value)}", "invalid_content")
        return False

    def _add(self, problem: str, reason: str) -> None:
        self.problems.add(problem, reason)


def _is_blank(content: Any) -> bool:
    """Whether there is nothing but white space; parts that are not text are something."""
    parts = [content] if isinstance(content, str) else content
    texts = [part.get("text") if isinstance(part, Mapping) else part for part in parts]
    return all(isinstance(text, str) and not text.strip() for text in texts)


def _renamed(turn: dict[str, Any]) -> dict[str, Any]:
    """ShareGPT's `{from, value}` under our names."""
    if "from" not in turn or "role" in turn:
        return turn
    rest = {key: item for key, item in turn.items() if key not in ("from", "value")}
    role = turn["from"]
    renamed = {"role": _SHAREGPT.get(role, role) if isinstance(role, str) else role}
    content = {"content": turn["value"]} if "value" in turn else {}
    return {**renamed, **content, **rest}
