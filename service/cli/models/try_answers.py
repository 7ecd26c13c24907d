"""Answers of `finetune try` as lines for people."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Final

Answer = Mapping[str, Any]
_MOST: Final = 5


def lines(task: str, answer: Answer) -> Iterator[str]:
    return _LINES.get(task, _text)(answer)


def _question(answer: Answer) -> Iterator[str]:
    probability = answer.get("probability")
    sure = "" if probability is None else f"  ({probability:.2f})"
    yield f"{answer['prediction'] or '(no answer)'}{sure}"


def _classes(answer: Answer) -> Iterator[str]:
    """One label, several, or a number."""
    prediction, probabilities = answer["prediction"], answer.get("probabilities")
    if probabilities is None:
        yield f"{prediction:.6g}"
        return
    names = prediction if isinstance(prediction, list) else [prediction]
    yield ", ".join(names) or "(no label)"
    ranked = sorted(probabilities.items(), key=lambda item: -item[1])
    width = max(len(name) for name, _ in ranked[:_MOST])
    for name, probability in ranked[:_MOST]:
        yield f"  {name:<{width}}  {probability:.3f}"


def _tags(answer: Answer) -> Iterator[str]:
    """Spans, or each word with its tag where the tags are not B-… and I-…."""
    words, tags = answer["tokens"], answer["prediction"]
    sure = answer.get("probabilities") or [None] * len(words)
    found = list(zip(words, [tag or "" for tag in tags], sure, strict=True))
    is_spans = all(tag in ("O", "") or tag[:2] in ("B-", "I-") for _, tag, _ in found)
    rows = list(_spans(found)) if is_spans else found
    if not rows:
        yield "(nothing found)"
        return
    width = max(len(word) for word, _, _ in rows)
    for word, tag, probability in rows:
        yield f"{word:<{width}}  {tag}" + ("" if probability is None else f"  {probability:.3f}")


def _spans(found: Sequence[tuple[str, str, float | None]]) -> Iterator[tuple[str, str, Any]]:
    """Words that belong together, with their kind and the lowest probability of them."""
    words: list[str] = []
    kind, lowest = "", 1.0
    for word, tag, probability in [*found, ("", "O", None)]:
        if words and not (tag.startswith("I-") and tag[2:] == kind):
            yield " ".join(words), kind, lowest
            words = []
        if tag[:2] in ("B-", "I-"):
            lowest = min(lowest if words else 1.0, 1.0 if probability is None else probability)
            words, kind = [*words, word], tag[2:]


def _masks(answer: Answer) -> Iterator[str]:
    for number, candidates in enumerate(answer["masks"], start=1):
        if len(answer["masks"]) > 1:
            yield f"mask {number}"
        for candidate in candidates:
            yield f"  {candidate['score']:.3f}  {candidate['token_str'].strip()}"


def _rewards(answer: Answer) -> Iterator[str]:
    """Of one answer, or of a better and a worse one."""
    found = [(name, value) for name, value in answer.items() if name.endswith("reward")]
    width = max(len(name) for name, _ in found)
    for name, value in found:
        yield f"{value:.4f}" if len(found) == 1 else f"{name:<{width}}  {value:.4f}"


def _text(answer: Answer) -> Iterator[str]:
    yield from str(answer["prediction"]).split("\n")


_LINES: Final[Mapping[str, Callable[[Answer], Iterator[str]]]] = {
    "question-answering": _question,
    "text-classification": _classes,
    "token-classification": _tags,
    "masked-lm": _masks,
    "reward": _rewards,
}
