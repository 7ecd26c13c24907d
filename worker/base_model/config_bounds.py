"""What a model's JSON files may ask for, checked before any library reads them.

Libraries build lists and modules of the sizes that they find: a layer count of 10**9 fills the
memory of the host while the configuration is being read.
"""

import math
import re
from collections.abc import Iterator, Mapping
from typing import Any, Final

from worker.base_model.json_files import broken

_DEEPEST: Final = 32
_LARGEST_NUMBER: Final = 2**53
_LONGEST_LIST: Final = 100_000
_MOST_LABELS: Final = 100_000
_LABELS: Final = ("id2label", "label2id")

_COUNTS: Final = re.compile(r"(.*_)?(layers?|heads?|experts?|labels|vocab_size)")
"""Below 0 these give empty models or errors that are hard to understand."""
# The first pattern that matches a name has its bound, ten times that of the largest known models or
# more. Names without a bound here are bounded by the memory and the time to build the model.
_BOUNDS: Final = tuple(
    (re.compile(pattern), bound)
    for pattern, bound in (
        (r".*_(id|ids|index)", _LARGEST_NUMBER),
        (r".*vocab.*|n_words", 2**26),
        (r".*positions?(_.*)?|n_ctx|.*seq(uence)?_len(gth)?|context_length|max_length", 2**25),
        (r"num_labels|.*_labels|num_classes", _MOST_LABELS),
        (r".*(size|dim|channels|width)(_per_.*)?|d_.*|dff|n_embd|n_inner|.*_embd", 2**24),
        (r".*experts?(_.*)?", 2**16),
        (r"(.*_)?n?(heads?|groups)(_.*)?", 2**14),
        (r"(.*_)?(layers?|blocks?|depths?|stages)|n_.*layers", 1024),
    )
)


def check(config: Mapping[str, Any], file: str, name: str) -> None:
    """StageError(invalid_model) for a number or a list that no model has."""
    for path, key, value in _values(config, file, name):
        if isinstance(value, list | dict):
            _check_length(path, key, value, file, name)
        elif isinstance(value, int | float) and not isinstance(value, bool):
            _check_number(path, key, value, file, name)
    _check_labels(config, file, name)


def _check_length(path: str, key: str, value: Any, file: str, name: str) -> None:
    most = _MOST_LABELS if key in _LABELS else _LONGEST_LIST
    if len(value) > most:
        problem = f"has {len(value):,} entries in `{path}`; at most {most:,} are accepted"
        raise broken(name, file, problem, field=path, limit=most)


def _check_number(path: str, key: str, value: float, file: str, name: str) -> None:
    if isinstance(value, float) and not math.isfinite(value):
        return  # some types have an infinite time limit
    if value < 0 and _COUNTS.fullmatch(key):
        raise broken(name, file, f"has `{path}`: {value:,}, which is less than 0", field=path)
    bound = bound_of(key)
    if abs(value) > bound:
        shown = f"{value:,}" if abs(value) < 10**18 else f"a number with {len(str(value))} digits"
        problem = f"has `{path}`: {shown}; at most {bound:,} is accepted"
        raise broken(name, file, problem, field=path, limit=bound)


def bound_of(key: str) -> int:
    found = (bound for pattern, bound in _BOUNDS if pattern.fullmatch(key))
    return next(found, _LARGEST_NUMBER)


def _check_labels(config: Mapping[str, Any], file: str, name: str) -> None:
    """`id2label` must be a mapping from numbers to texts, and `label2id` the other way round:
    libraries convert them."""
    for field in _LABELS:
        given = config.get(field)
        if given is not None and not isinstance(given, dict):
            raise broken(name, file, f"has `{field}` as {type(given).__name__}, not as an object")
    for key, value in (config.get("id2label") or {}).items():
        if not re.fullmatch(r"\d{1,9}", key) or not isinstance(value, str | int):
            problem = f"has `id2label` with the entry {key[:40]!r}: keys must be numbers from 0 on"
            raise broken(name, file, f"{problem}, and labels texts", field="id2label")
    if not all(isinstance(each, int) for each in (config.get("label2id") or {}).values()):
        problem = "has a `label2id` that does not map labels to numbers"
        raise broken(name, file, problem, field="label2id")


def _values(config: Mapping[str, Any], file: str, name: str) -> Iterator[tuple[str, str, Any]]:
    """(path, the nearest name, value) of everything in it."""
    pending: list[tuple[str, str, Any, int]] = [("", "", config, 0)]
    while pending:
        path, key, value, depth = pending.pop()
        if depth > _DEEPEST:
            raise broken(name, file, f"is nested more than {_DEEPEST} levels deep")
        if path:
            yield path, key, value
        if isinstance(value, dict):
            for inner, each in value.items():
                inside = f"{path}.{inner[:60]}" if path else inner[:60]
                pending.append((inside, inner, each, depth + 1))
        elif isinstance(value, list):
            pending += [(path, key, each, depth + 1) for each in value]
