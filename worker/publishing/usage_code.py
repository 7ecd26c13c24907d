"""The code of a model card: values of the job stand in it as literals, whatever they hold."""

import re
from collections.abc import Mapping
from typing import Any, Final

from service.contract.spec.peft import BASE_CONFIG_FOLDER
from service.contract.spec.spec import JobSpec
from service.system import escaping
from worker.publishing import adapter_snippet
from worker.publishing.task_texts import TASK_TEXTS

_PLACEHOLDER: Final = re.compile(r'"\{(?P<text>\w+)\}"|\{(?P<number>\w+)\}')


def of_model(spec: JobSpec, name: str) -> str:
    """Code that loads the model called `name` and uses it."""
    code = TASK_TEXTS[spec.task.variant()].usage
    return _filled(code, _values(spec, name))


def of_adapter(spec: JobSpec, name: str, base: str, revision: str | None) -> str:
    """Code that loads the base model at this revision, then the adapter called `name`."""
    code = adapter_snippet.of_adapter(
        TASK_TEXTS[spec.task.variant()].usage, with_revision=revision is not None
    )
    more = {"base": base, "revision": revision, "config_folder": BASE_CONFIG_FOLDER}
    return _filled(code, _values(spec, name) | more)


def _values(spec: JobSpec, name: str) -> dict[str, Any]:
    parameters = spec.task.model_dump()
    text = parameters.get("source_prefix", "") + TASK_TEXTS[spec.task.variant()].source
    return {**parameters, "model": name, "text": text}


def _filled(code: str, values: Mapping[str, Any]) -> str:
    """In one pass: a value that looks like a placeholder is text like any other."""

    def literal(found: re.Match[str]) -> str:
        name = found["text"] or found["number"]
        if name not in values:
            return found[0]
        return escaping.python_literal(values[name]) if found["text"] else repr(values[name])

    return _PLACEHOLDER.sub(literal, code)
