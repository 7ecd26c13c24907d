"""What a feature teaches, for a person: its tokens as text, and its target in words."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any, Final

from service.contract.parameters import TextClassificationSpec
from service.contract.previews import TrainedSpan
from service.contract.spec import JobSpec
from service.contract.splits import TEST
from worker.tasks import trained_spans
from worker.tasks.base import parameters_of
from worker.tasks.classification import labels
from worker.tasks.classification.text_rows import REGRESSION, SINGLE, Scheme

_NOT_SCORED: Final = -100
_DESIRABLE: Final = "desirable"
_INCOMPLETE: Final = "\ufffd"


@dataclass(frozen=True)
class Describer:
    """Of one split of a job; `train_examples` define the labels, None in a job without them."""

    spec: JobSpec
    tokenizer: Any
    train_examples: Any
    split: str

    def of(self, feature: Mapping[str, Any], most: int | None = None) -> dict[str, Any]:
        """The first `most` `tokens` and their `text`, and `target`: a text, or a label for each of
        these tokens (null: not scored)."""
        # Features of the test split have placeholders for targets, or none.
        describe = _predicted if self.split == TEST else _TARGETS[self.spec.task.type]
        target = describe(self, feature)
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
        mark = _TRAINED.get(self.spec.task.type)
        return None if mark is None or self.split == TEST else mark(feature)

    def trained_tokens(self, feature: Mapping[str, Any]) -> float | None:
        """How many tokens of the feature count in the loss; None if only labels do."""
        flags = self.trained(feature)
        if flags is not None:
            return sum(flags)
        count = _COUNTED.get(self.spec.task.type)
        return None if count is None or self.split == TEST else count(self, feature)

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


def _predicted(_describer: Describer, _feature: Mapping[str, Any]) -> str:
    return "none, the row is predicted"


def _answer(describer: Describer, feature: Mapping[str, Any]) -> str:
    first, last = feature["start_positions"], feature["end_positions"]
    ids = feature["input_ids"]
    if first == last and ids[first] in describer.tokenizer.all_special_ids:
        return "no answer in this window"
    answer = describer.text(ids[first : last + 1]).strip()
    return f"answer: {answer} (tokens {first} to {last})"


def _next_tokens(_describer: Describer, _feature: Mapping[str, Any]) -> str:
    return "each token, predicted from the tokens before it"


def _masked_tokens(describer: Describer, _feature: Mapping[str, Any]) -> str:
    share = getattr(describer.spec.task, "mlm_probability", 0.15)
    return f"{share:.0%} of the tokens, chosen anew in each batch"


def _label(describer: Describer, feature: Mapping[str, Any]) -> str:
    parameters = parameters_of(describer.spec, TextClassificationSpec)
    scheme = Scheme.of(parameters, describer.train_examples)
    target = feature["labels"]
    if scheme.problem == REGRESSION:
        return f"number: {target:g}"
    names = scheme.classes.names
    if scheme.problem == SINGLE:
        return f"label: {names[target]}"
    chosen = [name for name, given in zip(names, target, strict=True) if given]
    return f"labels: {', '.join(chosen) or 'none'}"


def _tags(describer: Describer, feature: Mapping[str, Any]) -> list[str | None]:
    given = getattr(describer.spec.task, "label_names", None)
    names = labels.classes_of(given, describer.train_examples, "tags").names
    return [None if label == _NOT_SCORED else names[label] for label in feature["labels"]]


def _text_to_write(describer: Describer, feature: Mapping[str, Any]) -> str:
    return f"text: {describer.text([token for token in feature['labels'] if token >= 0])}"


def _trained_text(describer: Describer, feature: Mapping[str, Any]) -> str:
    tokens = zip(feature["input_ids"], feature["trained"], strict=True)
    return f"text: {describer.text([token for token, trained in tokens if trained])}"


def _answers(describer: Describer, feature: Mapping[str, Any]) -> str:
    """The answers that are compared; of KTO's features the one that is learned from."""
    ends = list(accumulate(feature["lengths"]))
    texts = []
    for begin, end in pairwise([0, *ends]):
        part = {name: feature[name][begin:end] for name in ("input_ids", "trained")}
        texts.append(_trained_text(describer, part).removeprefix("text: "))
    if _DESIRABLE in feature:
        return f"{'good' if feature[_DESIRABLE] else 'bad'} answer: {texts[0]}"
    return f"chosen: {texts[0]}; rejected: {texts[1]}"


_TARGETS: Final[dict[str, Callable[[Describer, Mapping[str, Any]], Any]]] = {
    "question-answering": _answer,
    "causal-lm": _next_tokens,
    "masked-lm": _masked_tokens,
    "text-classification": _label,
    "token-classification": _tags,
    "summarization": _text_to_write,
    "translation": _text_to_write,
    "chat": _trained_text,
    "preference": _answers,
    "reward": _answers,
}


def _first_tokens(feature: Mapping[str, Any]) -> Iterable[int]:
    """Those that no token of the same row precedes: nothing predicts them."""
    yield 0
    if "starts" in feature:
        yield from (place for place, is_first in enumerate(feature["starts"]) if is_first)
    if "lengths" in feature:
        yield from accumulate(feature["lengths"][:-1])


def _following(feature: Mapping[str, Any]) -> list[bool]:
    """The tokens that are marked in the feature, or else all, but for the first ones."""
    given = feature.get("trained")
    flags = [True] * len(feature["input_ids"]) if given is None else list(map(bool, given))
    for place in _first_tokens(feature):
        flags[place] = False
    return flags


def _compared(feature: Mapping[str, Any]) -> list[bool]:
    """The tokens of the answers. KTO's second sequence estimates a divergence: it is not learned
    from."""
    flags = _following(feature)
    if _DESIRABLE in feature:
        own = feature["lengths"][0]
        flags[own:] = [False] * (len(flags) - own)
    return flags


def _labelled(feature: Mapping[str, Any]) -> list[bool]:
    return [label != _NOT_SCORED for label in feature["labels"]]


_TRAINED: Final[dict[str, Callable[[Mapping[str, Any]], list[bool]]]] = {
    "causal-lm": _following,
    "chat": _following,
    "preference": _compared,
    "token-classification": _labelled,
}
"""Tasks whose loss is of the tokens of the input itself."""


def _masked_count(describer: Describer, feature: Mapping[str, Any]) -> float:
    special = set(describer.tokenizer.all_special_ids)
    share: float = getattr(describer.spec.task, "mlm_probability", 0.15)
    return share * sum(token not in special for token in feature["input_ids"])


def _target_count(_describer: Describer, feature: Mapping[str, Any]) -> float:
    return sum(_labelled(feature))


_COUNTED: Final[dict[str, Callable[[Describer, Mapping[str, Any]], float]]] = {
    "masked-lm": _masked_count,
    "summarization": _target_count,
    "translation": _target_count,
}
"""Tasks whose loss is of other tokens."""
