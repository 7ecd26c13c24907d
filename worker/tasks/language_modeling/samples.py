"""Sample predictions of a language model: continuations, and candidates for masked tokens."""

from collections.abc import Callable, Mapping, Sequence
from itertools import pairwise
from typing import Any, Final

import torch

from worker.tasks.common.predictions import SAMPLES, spread
from worker.tasks.common.token_scores import IGNORED
from worker.training.objective import Batch, Features, Forward

_TOKENS: Final = 16
"""The length of a prompt, and of its continuation."""
_TEXT_TOKENS: Final = 64
_MASKS: Final = 5
_CANDIDATES: Final = 3

Logits = Callable[[torch.nn.Module, Batch], torch.Tensor]
"""(batch, length, vocabulary) logits of inputs without padding."""


def continuations(
    features: Features, tokenizer: Any, forward: Forward, logits: Logits
) -> list[dict[str, Any]]:
    """Beginnings of blocks, the actual continuation, and the model's greedy continuation."""
    picked = spread(len(features), SAMPLES)
    documents = [_longest_document(features[block]) for block in picked]
    # All prompts have the same length, so that none is padded.
    begin = min([2 * _TOKENS, *map(len, documents)]) // 2
    length = 2 * begin
    prompts = [{"input_ids": document[:begin]} for document in documents]
    if begin == 0:
        return []

    def stacked(rows: Sequence[Mapping[str, Any]]) -> Batch:
        return {"input_ids": torch.tensor([row["input_ids"] for row in rows])}

    def greedy(model: torch.nn.Module, batch: Batch) -> torch.Tensor:
        tokens = batch["input_ids"]
        while tokens.shape[1] < length:
            most_likely = logits(model, {"input_ids": tokens})[:, -1].argmax(dim=-1)
            tokens = torch.cat([tokens, most_likely[:, None]], dim=1)
        return tokens

    written: dict[int, list[int]] = {}
    for indices, tokens in forward(prompts, stacked, greedy):
        written |= dict(zip(indices, tokens.tolist(), strict=True))
    return [
        {
            "block": block,
            "prompt": tokenizer.decode(documents[number][:begin]),
            "reference": tokenizer.decode(documents[number][begin:length]),
            "prediction": tokenizer.decode(written[number][begin:]),
        }
        for number, block in enumerate(picked)
    ]


def _longest_document(block: Mapping[str, Any]) -> list[int]:
    """The longest document of a block; the whole block if documents are not separated."""
    tokens = list(block["input_ids"])
    starts = [at for at, starts in enumerate(block.get("starts", ())) if starts]
    bounds = sorted({0, *starts, len(tokens)})
    begin, end = max(pairwise(bounds), key=lambda pair: pair[1] - pair[0])
    return tokens[begin:end]


def most_likely(logits: torch.Tensor) -> torch.Tensor:
    """(tokens, candidates) of (tokens, vocabulary), the most likely first."""
    return logits.topk(_CANDIDATES).indices


class Masks:
    """Collects samples from the outputs of an evaluation."""

    def __init__(self, features: Features, tokenizer: Any) -> None:
        self._features = features
        self._tokenizer = tokenizer
        self._found: dict[int, list[dict[str, Any]]] = {
            index: [] for index in spread(len(features), SAMPLES)
        }

    def add(self, indices: Sequence[int], most_likely: torch.Tensor, labels: torch.Tensor) -> None:
        """`most_likely`: candidates of the tokens with a label; `labels`: (batch, length)."""
        counts = (labels != IGNORED).sum(dim=1).tolist()
        for index, own in zip(indices, most_likely.split(counts), strict=True):
            if index in self._found:
                self._found[index] = self._filled(self._features[index], own.tolist())

    def _filled(
        self, feature: Mapping[str, Any], most_likely: list[list[int]]
    ) -> list[dict[str, Any]]:
        places = [place for place, label in enumerate(feature["labels"]) if label != IGNORED]
        mask = self._tokenizer.mask_token_id
        masked = [
            (int(feature["labels"][place]), tokens)
            for place, tokens in zip(places, most_likely, strict=True)
            if feature["input_ids"][place] == mask and place < _TEXT_TOKENS
        ]
        return [
            {
                "reference": self._tokenizer.decode([label]),
                "predictions": [self._tokenizer.decode([token]) for token in tokens],
            }
            for label, tokens in masked[:_MASKS]
        ]

    def rows(self, keys: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
        """Each masked text, and for its first masks the original token and the candidates."""
        return [
            {
                **keys[index],
                "text": self._tokenizer.decode(self._features[index]["input_ids"][:_TEXT_TOKENS]),
                "masks": found,
            }
            for index, found in self._found.items()
        ]
