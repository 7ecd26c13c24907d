"""What a feature teaches, for a person: its tokens as text, and its target in words."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any, Final, Protocol

from service.contract.interactive.previews import TrainedSpan
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TEST
from worker.tasks import trained_spans

_NOT_SCORED: Final = -100
_INCOMPLETE: Final = "\ufffd"


class _Described(Protocol):
    """A `worker.tasks.base.Task`, which has a describer as an argument itself."""

    def trained(self, feature: Mapping[str, Any]) -> list[bool] | None: ...
    def trained_count(self, describer: "Describer", feature: Mapping[str, Any]) -> float | None: ...
    def target(
        self, describer: "Describer", feature: Mapping[str, Any]
    ) -> str | list[str | None]: ...


@dataclass(frozen=True)
class Describer:
    """Of one split of a job; `train_examples` define the labels, None in a job without them."""

    task: _Described
    spec: JobSpec
    tokenizer: Any
    train_examples: Any
    split: str

    def described(self, feature: Mapping[str, Any], most: int | None = None) -> dict[str, Any]:
        """The first `most` `tokens` and their `text`, and `target`: a text, or a label for each of
        these tokens (null: not scored)."""
        # Features of the test split have placeholders for targets, or none.
        target: Any = "none, the row is predicted"
        if self.split != TEST:
            target = self.task.target(self, feature)
        ids = feature["input_ids"][:most]
        return {
            "tokens": self.tokens(ids),
            "text": self.text(ids),
            "target": target[:most] if isinstance(target, list) else target,
        }

    def tokens(self, ids: Sequence[int]) -> list[str]:
        """Each token as the text that it represents; the vocabulary's entry for a part of a
        character."""
        entries = self.tokenizer.convert_ids_to_tokens(list(ids))
        texts = [self.tokenizer.decode([token]) for token in ids]
        return [
            entry if _INCOMPLETE in text or not text else text
            for entry, text in zip(entries, texts, strict=True)
        ]

    def trained(self, feature: Mapping[str, Any]) -> list[bool] | None:
        """For each of `input_ids` whether it counts in the loss; None if labels of the whole
        feature do, other tokens, or tokens chosen anew in each batch."""
        return None if self.split == TEST else self.task.trained(feature)

    def trained_tokens(self, feature: Mapping[str, Any]) -> float | None:
        """How many tokens of the feature count in the loss; None if only labels do."""
        flags = self.trained(feature)
        if flags is not None:
            return sum(flags)
        return None if self.split == TEST else self.task.trained_count(self, feature)

    def trained_spans(
        self, feature: Mapping[str, Any], most: int | None = None
    ) -> list[TrainedSpan] | None:
        """Of the first `most` tokens, in them and in their text."""
        flags = self.trained(feature)
        if flags is None:
            return None
        return trained_spans.spans_of(feature["input_ids"][:most], flags[:most], self.text)

    def unknown_share(self, features: Sequence[Sequence[int]]) -> float | None:
        unknown = self.tokenizer.unk_token_id
        if unknown is None:
            return None
        total = sum(map(len, features))
        return sum(list(ids).count(unknown) for ids in features) / total if total else None

    def text(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), clean_up_tokenization_spaces=False))


def trained_text(describer: Describer, feature: Mapping[str, Any]) -> str:
    tokens = zip(feature["input_ids"], feature["trained"], strict=True)
    return f"text: {describer.text([token for token, trained in tokens if trained])}"


def _first_tokens(feature: Mapping[str, Any]) -> Iterable[int]:
    """Those that no token of the same row precedes: nothing predicts them."""
    yield 0
    if "starts" in feature:
        yield from (place for place, is_first in enumerate(feature["starts"]) if is_first)
    if "lengths" in feature:
        yield from accumulate(feature["lengths"][:-1])


def following(feature: Mapping[str, Any]) -> list[bool]:
    """The tokens that are marked in the feature, or else all, but for the first ones."""
    given = feature.get("trained")
    flags = [True] * len(feature["input_ids"]) if given is None else list(map(bool, given))
    for place in _first_tokens(feature):
        flags[place] = False
    return flags


def labelled(feature: Mapping[str, Any]) -> list[bool]:
    return [label != _NOT_SCORED for label in feature["labels"]]
