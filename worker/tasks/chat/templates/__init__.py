"""Chat templates by name, written after the public form of each family of models.

Each marks what the assistant writes with `{% generation %}`, up to the token that ends its turn.
"""

import difflib
import re
from collections.abc import Mapping
from importlib.resources import files
from typing import Any, Final

from worker.data.inferences import Inferences
from worker.failures import invalid_option

NAMES: Final = (
    *("chatml", "deepseek", "gemma", "granite", "llama2", "llama3", "mistral", "olmo2"),
    *("phi3", "phi4", "qwen2.5", "qwen3", "smollm2", "zephyr"),
)
OPTION: Final = "task.chat_template"
_JINJA: Final = re.compile(r"\{[{%#]")
_DEFAULT, _WITH_TOOLS = "default", "tool_use"


def read(name: str) -> str:
    """The text of a template of ours."""
    return (files(__package__) / f"{name}.jinja").read_text(encoding="utf-8")


def setting(requested: str | None) -> str | None:
    """What prepared data depends on: the text, as a later release may change that of a name."""
    return read(requested) if requested in NAMES else requested


def chosen(tokenizer: Any, requested: str | None) -> Mapping[bool, str]:
    """The templates of conversations without (False) and with tools (True).

    Raises StageError(invalid_option) if there is none.
    """
    if requested is not None:
        text = _requested(tokenizer, requested)
        return {False: text, True: text}
    own = _own(tokenizer)
    plain = own.get(_DEFAULT) or own.get(_WITH_TOOLS)
    if not plain:
        raise invalid_option(
            OPTION,
            "is needed, because the model's tokenizer has no chat template: give the text of a "
            f"Jinja template, or the name of one of ours: {', '.join(NAMES)}",
            templates=list(NAMES),
        )
    return {False: plain, True: own.get(_WITH_TOOLS, plain)}


def infer(tokenizer: Any, requested: str | None, found: Inferences) -> None:
    """Report that the model's own template writes the rows, where the job gives none."""
    own = _own(tokenizer)
    if requested is not None or not own:
        return
    name = _DEFAULT if own.get(_DEFAULT) else _WITH_TOOLS
    other = _WITH_TOOLS in own and name != _WITH_TOOLS
    also = f"; its template `{_WITH_TOOLS}` writes conversations with tools" if other else ""
    found.add(OPTION, name, f"the chat template of the model's tokenizer writes the rows{also}")


def _own(tokenizer: Any) -> Mapping[str, str]:
    """The templates that come with the model, by name; its files may hold anything."""
    own = tokenizer.chat_template
    named = own if isinstance(own, Mapping) else {_DEFAULT: own}
    return {name: text for name, text in named.items() if isinstance(text, str)}


def _requested(tokenizer: Any, requested: str) -> str:
    """The text of a template that is given by name, or itself."""
    if requested in NAMES:
        return read(requested)
    own = _own(tokenizer)
    if requested in own:
        return own[requested]
    if _JINJA.search(requested):
        return requested
    known = [*NAMES, *own]
    near = difflib.get_close_matches(requested[:60], known, 1)
    hint = f"did you mean {near[0]!r}?" if near else f"give one of {', '.join(known)}"
    raise invalid_option(
        OPTION,
        f"is {requested[:60]!r}, which is neither a template's name nor the text of one: {hint}",
        templates=known,
    )
