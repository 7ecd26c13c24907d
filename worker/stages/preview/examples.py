"""The features of a preview: a few in full, and what counts in the loss of all of them."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from service.contract.interactive.previews import MOST_CHARACTERS, MOST_TOKENS
from service.contract.spec.spec import JobSpec
from service.contract.spec.splits import TRAIN
from worker.tasks import registry
from worker.tasks.base import EXAMPLES_FILE, FEATURES_FILE
from worker.tasks.describe import Describer

_FEATURES_COUNTED: Final = 1000


@dataclass(frozen=True)
class TokenizedSplits:
    spec: JobSpec
    tokenizer: Any
    folder: Path
    """With a folder for each split that has been tokenized."""

    def features(self, split: str) -> Any:
        import datasets

        return datasets.Dataset.from_file(str(self.folder / split / FEATURES_FILE))

    def describer(self, split: str) -> Describer:
        import datasets

        train = self.folder / TRAIN / EXAMPLES_FILE
        has_train = self.spec.trains and (self.folder / TRAIN / FEATURES_FILE).is_file()
        examples = datasets.Dataset.from_file(str(train)) if has_train else None
        return Describer(
            registry.get(self.spec.variant()), self.spec, self.tokenizer, examples, split
        )


def unknown_share(tokenized: TokenizedSplits, split: str) -> float | None:
    """Share of the tokens that the tokenizer has no entry for."""
    first = tokenized.features(split)[:_FEATURES_COUNTED]["input_ids"]
    return tokenized.describer(split).unknown_share(first)


def examples_of(tokenized: TokenizedSplits, split: str, shown: int) -> list[dict[str, Any]]:
    features, describer = tokenized.features(split), tokenized.describer(split)
    return [
        {
            "split": split,
            **_cut(describer.described(feature, MOST_TOKENS)),
            "length": len(feature["input_ids"]),
            "trained": _spans(describer, feature),
        }
        for feature in (features[number] for number in range(min(shown, len(features))))
    ]


def _cut(described: dict[str, Any]) -> dict[str, Any]:
    """A target in words may be the whole feature, however long that is."""
    target = described["target"]
    if isinstance(target, str) and len(target) > MOST_CHARACTERS:
        described["target"] = f"{target[:MOST_CHARACTERS]}…"
    return described


def _spans(describer: Describer, feature: Any) -> list[dict[str, Any]] | None:
    spans = describer.trained_spans(feature, MOST_TOKENS)
    return None if spans is None else [span.model_dump() for span in spans]


def trained_tokens(tokenized: TokenizedSplits, split: str) -> int | None:
    """Tokens of all features of the split that count in the loss; None if labels do."""
    describer, total = tokenized.describer(split), 0.0
    for feature in tokenized.features(split):
        count = describer.trained_tokens(feature)
        if count is None:
            return None
        total += count
    return round(total)
