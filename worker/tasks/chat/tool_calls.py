"""Calls of tools, and the tools themselves, in the one form that chat templates read."""

import json
from collections.abc import Mapping
from typing import Any, Final

from worker.data.text import json_fault
from worker.tasks.chat.problems import Problems
from worker.tasks.common.cells import kind_of

_MALFORMED: Final = "malformed_tool_calls"
_BAD_TOOLS: Final = "malformed_tools"


def _without_nulls(value: Any) -> Any:
    """`value` without keys whose value is null: columns of structs have every key in each row."""
    if isinstance(value, Mapping):
        return {key: _without_nulls(item) for key, item in value.items() if item is not None}
    return [_without_nulls(item) for item in value] if isinstance(value, list) else value


def calls_of(value: Any, place: str, problems: Problems) -> list[dict[str, Any]]:
    """OpenAI's `tool_calls`, or the same without `function` around name and arguments.

    Arguments that are JSON text become the object that templates expect.
    """
    if not isinstance(value, list):
        problems.add(f"{place} must be a list, not {kind_of(value)}", _MALFORMED)
        return []
    return [call_of(item, f"{place}[{number}]", problems) for number, item in enumerate(value)]


def call_of(value: Any, place: str, problems: Problems) -> dict[str, Any]:
    """One of the calls, or `function_call`, which OpenAI had before `tool_calls`."""
    try:
        call = _without_nulls(value)
    except RecursionError:
        problems.add(f"{place} is nested too deeply", _MALFORMED)
        return {}
    if not isinstance(call, dict):
        problems.add(f"{place} must be an object, not {kind_of(value)}", _MALFORMED)
        return {}
    function = call.get("function", call)
    if not isinstance(function, dict) or not _is_name(function.get("name")):
        problems.add(f"{place} must name its function: {{name, arguments}}", _MALFORMED)
        return {}
    identity = {"id": call["id"]} if "id" in call else {}
    if not isinstance(identity.get("id", ""), str):
        problems.add(f"{place}.id must be text", _MALFORMED)
    arguments = _arguments(function.get("arguments", {}), f"{place}.arguments", problems)
    called = {"name": function["name"], "arguments": arguments}
    return {**identity, "type": "function", "function": called}


def _arguments(value: Any, place: str, problems: Problems) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except (ValueError, RecursionError) as error:
            problems.add(f"{place} is {json_fault(error)}", _MALFORMED)
            return {}
    if not isinstance(value, dict):
        message = f"{place} must be an object or its JSON text, not {kind_of(value)}"
        problems.add(message, _MALFORMED)
        return {}
    return value


def tools_of(value: Any, problems: Problems) -> list[dict[str, Any]]:
    """The column `tools`, a list or its JSON text, in OpenAI's form.

    A tool may also be given as its function alone.
    """
    if isinstance(value, str):
        try:
            value = json.loads(value) if value.strip() else []
        except (ValueError, RecursionError) as error:
            problems.add(f"`tools` is {json_fault(error)}", _BAD_TOOLS)
            return []
    if not isinstance(value, list):
        problems.add(f"`tools` must be a list, not {kind_of(value)}", _BAD_TOOLS)
        return []
    return [_tool(item, f"tools[{number}]", problems) for number, item in enumerate(value)]


def _tool(value: Any, place: str, problems: Problems) -> dict[str, Any]:
    try:
        tool = _without_nulls(value)
    except RecursionError:
        problems.add(f"{place} is nested too deeply", _BAD_TOOLS)
        return {}
    function = tool.get("function", tool) if isinstance(tool, dict) else None
    if not isinstance(function, dict) or not _is_name(function.get("name")):
        problems.add(f"{place} must be {{type: function, function: {{name, …}}}}", _BAD_TOOLS)
        return {}
    return tool if "function" in tool else {"type": "function", "function": tool}


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and bool(value.strip())
