"""Precision, recall and F1 of chunks in tag sequences, as seqeval (and conlleval) define them."""

import re
from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Final

Tags = Sequence[str]
Chunk = tuple[int, int, str]
"""(first word, last word, type)."""

OUTSIDE: Final = "O"
_PREFIXED: Final = re.compile(r"[BIES](-|$)")
# Characters that MLflow or a URL does not allow in the name of a metric.
_UNFIT: Final = re.compile(r"[^\w.\- ]")


def is_chunk_scheme(names: Iterable[str]) -> bool:
    """Whether all tags are O or have a prefix B-, I-, E- or S-, unlike plain classes."""
    return all(name == OUTSIDE or _PREFIXED.match(name) for name in names)


def chunks(tags: Tags) -> list[Chunk]:
    """The chunks of one sequence.

    As lenient as seqeval by default: a chunk may begin with I or E. It ends before another type,
    before B or S, and after E or S.
    """
    found: list[Chunk] = []
    before, before_type = OUTSIDE, ""
    for place, tag in enumerate(tags):
        kind, type_ = tag.partition("-")[0], _type_of(tag)
        if kind != OUTSIDE:
            continues = kind in "IE" and before in ("B", "I") and before_type == type_
            first = found.pop()[0] if continues else place
            found.append((first, place, type_))
        before, before_type = kind, type_
    return found


def scores(golds: Sequence[Tags], predictions: Sequence[Tags]) -> dict[str, float]:
    """Metrics over all chunks (micro), and `<type>_…` for each type on either side.

    A quotient without a denominator is 0.
    """
    right: Counter[str] = Counter()
    gold: Counter[str] = Counter()
    predicted: Counter[str] = Counter()
    for gold_tags, predicted_tags in zip(golds, predictions, strict=True):
        gold_chunks, predicted_chunks = set(chunks(gold_tags)), set(chunks(predicted_tags))
        gold.update(chunk[2] for chunk in gold_chunks)
        predicted.update(chunk[2] for chunk in predicted_chunks)
        right.update(chunk[2] for chunk in gold_chunks & predicted_chunks)
    metrics = _named("", right.total(), gold.total(), predicted.total())
    for type_ in sorted(gold.keys() | predicted.keys()):
        prefix = _prefix(type_)
        metrics |= _named(prefix, right[type_], gold[type_], predicted[type_])
        metrics[f"{prefix}number"] = float(gold[type_])
    return metrics


def names_of_types(tags: Iterable[str]) -> list[str]:
    """What `scores` reports of the types in these gold tags."""
    types = sorted({_type_of(tag) for tag in tags if tag != OUTSIDE})
    of_each = [*_named("", 0, 0, 0), "number"]
    return [f"{_prefix(type_)}{name}" for type_ in types for name in of_each]


def _type_of(tag: str) -> str:
    return tag.partition("-")[2] or "_"


def _prefix(type_: str) -> str:
    return _UNFIT.sub("_", type_) + "_"


def _named(prefix: str, right: int, gold: int, predicted: int) -> dict[str, float]:
    precision = right / predicted if predicted else 0.0
    recall = right / gold if gold else 0.0
    both = gold + predicted
    return {
        f"{prefix}precision": precision,
        f"{prefix}recall": recall,
        f"{prefix}f1": 2 * right / both if both else 0.0,
    }
