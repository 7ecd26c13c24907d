"""What a tokenizer.json may ask for, checked before the tokenizers library builds it.

That library runs native code, and a Python error cannot stop it from using memory.
"""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from worker.base_model.json_files import broken

FILE: Final = "tokenizer.json"
_MOST_ADDED: Final = 200_000
_MOST_STEPS: Final = 200
_LONGEST_PATTERN: Final = 10_000
_LARGEST_GROWTH: Final = 1000.0
_DEEPEST: Final = 16


def check(content: Mapping[str, Any], name: str) -> None:
    """StageError(invalid_model): no known tokenizer is like that."""
    added = content.get("added_tokens")
    if isinstance(added, list) and len(added) > _MOST_ADDED:
        problem = f"adds {len(added):,} tokens; at most {_MOST_ADDED:,} are accepted"
        raise broken(name, FILE, problem, limit=_MOST_ADDED)
    steps, growth = 0, 1.0
    for section in ("normalizer", "pre_tokenizer", "decoder"):
        for step in _steps(content.get(section), name):
            steps += 1
            growth *= _growth(step, name)
    if steps > _MOST_STEPS:
        problem = f"has {steps:,} steps; at most {_MOST_STEPS} are accepted"
        raise broken(name, FILE, problem, limit=_MOST_STEPS)
    if growth > _LARGEST_GROWTH:
        raise broken(name, FILE, "replaces text by text that is over a thousand times as long")


def _steps(value: Any, name: str, depth: int = 0) -> Iterator[Mapping[str, Any]]:
    """The steps of a section and of the sequences in it."""
    if depth > _DEEPEST:
        raise broken(name, FILE, f"has steps nested more than {_DEEPEST} levels deep")
    if not isinstance(value, Mapping):
        return
    yield value
    for each in value.values():
        if isinstance(each, list):
            for inner in each:
                yield from _steps(inner, name, depth + 1)


def _growth(step: Mapping[str, Any], name: str) -> float:
    """How many times as long a step can make a text."""
    pattern = step.get("pattern")
    text = next(iter(pattern.values()), "") if isinstance(pattern, Mapping) and pattern else ""
    if isinstance(text, str) and len(text) > _LONGEST_PATTERN:
        problem = f"has a pattern of {len(text):,} characters; at most {_LONGEST_PATTERN:,} are"
        raise broken(name, FILE, f"{problem} accepted", limit=_LONGEST_PATTERN)
    content = step.get("content")
    if step.get("type") != "Replace" or not isinstance(content, str) or not isinstance(text, str):
        return 1.0
    return max(1.0, len(content) / max(1, len(text)))
