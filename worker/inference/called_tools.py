"""The calls of tools in a text that a model has written."""

import json
import re
from typing import Any, Final

_CALL: Final = re.compile(r"<tool_call>\s*(\{.*?\})\s*</tool_call>", re.DOTALL)
"""As Qwen, Hermes and SmolLM write them."""


def message_of(text: str, identity: str, *, has_tools: bool) -> dict[str, Any]:
    """The assistant's message; with `tool_calls` in OpenAI's form if all calls of the text can be
    read, otherwise the text as it is. `identity` begins the ids of the calls."""
    plain: dict[str, Any] = {"role": "assistant", "content": text}
    if not has_tools:
        return plain
    calls = [_call(found[1]) for found in _CALL.finditer(text)]
    if not calls and text.lstrip().startswith("{"):
        calls = [_call(text)]  # as Llama 3 writes it
    made = [
        {"id": f"call_{identity}_{number}", "type": "function", "function": call}
        for number, call in enumerate(calls)
        if call is not None
    ]
    if not made or len(made) < len(calls):
        return plain
    rest = "" if text.lstrip().startswith("{") else _CALL.sub("", text).strip()
    return {"role": "assistant", "content": rest or None, "tool_calls": made}


def _call(text: str) -> dict[str, str] | None:
    try:
        given = json.loads(text)
    except (ValueError, RecursionError):
        return None
    if not isinstance(given, dict) or not isinstance(given.get("name"), str):
        return None
    arguments = given.get("arguments", given.get("parameters", {}))
    if not isinstance(arguments, str):
        arguments = json.dumps(arguments, ensure_ascii=False)
    return {"name": given["name"], "arguments": arguments}
