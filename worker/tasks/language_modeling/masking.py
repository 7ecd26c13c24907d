"""Chooses the tokens to mask, as a pure function of (seed, epoch, example)."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from worker.tasks.common.token_scores import IGNORED

_EVALUATION: Final = 0  # the draw of evaluations; epoch e uses draw e + 1
_MASKED, _RANDOM = 0.8, 0.1  # shares of the chosen tokens; the rest stays unchanged


@dataclass(frozen=True)
class Masking:
    """Chooses tokens and replaces them."""

    seed: int
    probability: float
    mask_id: int
    ordinary: npt.NDArray[np.int64]
    """Ids of all tokens that are not special; random tokens are drawn from them."""
    special: npt.NDArray[np.int64]
    """Ids that are never chosen."""

    @classmethod
    def for_tokenizer(cls, tokenizer: Any, seed: int, probability: float) -> "Masking":
        special = np.array(sorted(set(tokenizer.all_special_ids)), dtype=np.int64)
        known = np.array(sorted(set(tokenizer.get_vocab().values())), dtype=np.int64)
        ordinary = np.setdiff1d(known, special)
        return cls(seed, probability, tokenizer.mask_token_id, ordinary, special)

    def __call__(
        self, ids: npt.NDArray[np.int64], starts: npt.NDArray[np.int8] | None, draw: int, index: int
    ) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """(ids with masks, labels) of example `index`, each as long as `ids`.

        With `starts`, 1 at the first token of each word, whole words are chosen.
        """
        generator = np.random.default_rng(np.random.SeedSequence((self.seed, draw, index)))
        if starts is None:
            chosen = generator.random(len(ids)) < self.probability
        else:
            words = np.cumsum(starts)
            chosen = (generator.random(len(ids) + 1) < self.probability)[words]
        chosen &= ~np.isin(ids, self.special)
        chance = generator.random(len(ids))
        others = self.ordinary[generator.integers(len(self.ordinary), size=len(ids))]
        masked = np.where(chosen & (chance < _MASKED), self.mask_id, ids)
        drawn = chosen & (chance >= _MASKED) & (chance < _MASKED + _RANDOM)
        return np.where(drawn, others, masked), np.where(chosen, ids, IGNORED)


class MaskedFeatures(Sequence[Mapping[str, Any]]):
    """Features with masked `input_ids` and the original tokens as `labels`."""

    def __init__(self, features: Any, masking: Masking, draw: int = _EVALUATION) -> None:
        self.viewed = features
        self._masking = masking
        self._draw = draw

    def __len__(self) -> int:
        return len(self.viewed)

    def __getitem__(self, index: Any) -> Any:
        feature = self.viewed[index]
        starts = feature.get("starts")
        ids, labels = self._masking(
            np.asarray(feature["input_ids"], dtype=np.int64),
            None if starts is None else np.asarray(starts, dtype=np.int8),
            self._draw,
            index,
        )
        return {"input_ids": ids, "labels": labels}

    def __iter__(self) -> Iterator[Mapping[str, Any]]:
        return (self[index] for index in range(len(self)))


class EpochMasks(MaskedFeatures):
    """Training features with new masks in every epoch."""

    def at_epoch(self, epoch: int) -> MaskedFeatures:
        return MaskedFeatures(self.viewed, self._masking, epoch + 1)
