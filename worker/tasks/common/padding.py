"""Pads sequences to the longest, on the side that the tokenizer uses."""

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from worker.training.objective import Batch


class Padding:
    """Makes the inputs of a model from features with `input_ids` (and `token_type_ids`)."""

    def __init__(self, tokenizer: Any, model: torch.nn.Module, least: int = 0) -> None:
        """`least`: the minimum length of a batch in tokens."""
        self.left = tokenizer.padding_side == "left"
        self._least = least
        self._token_types = _takes_token_types(model)
        self._fill = {
            "input_ids": tokenizer.pad_token_id,
            "token_type_ids": tokenizer.pad_token_type_id,
        }

    def inputs(self, features: Sequence[Mapping[str, Any]]) -> Batch:
        """Ids, attention mask and, if the model uses them, token types; (batch, longest) int64."""
        names = ["input_ids"]
        if self._token_types and "token_type_ids" in features[0]:
            names.append("token_type_ids")
        batch = {
            name: self.pad_rows([feature[name] for feature in features], self._fill[name])
            for name in names
        }
        ones = [np.ones(len(feature["input_ids"]), dtype=np.int64) for feature in features]
        batch["attention_mask"] = self.pad_rows(ones, 0)
        return batch

    def pad_rows(self, rows: Sequence[Any], value: int) -> torch.Tensor:
        """(batch, longest) int64, padded with `value`."""
        return pad(rows, value, left=self.left, least=self._least)

    def shifts(self, rows: Sequence[Any]) -> list[int]:
        """How many pad tokens precede each row."""
        longest = max(self._least, *map(len, rows))
        return [longest - len(row) if self.left else 0 for row in rows]


def pad(rows: Sequence[Any], value: int, *, left: bool = False, least: int = 0) -> torch.Tensor:
    """(batch, longest) int64, padded with `value` to `least` tokens or more."""
    longest = max(least, *map(len, rows))
    padded = np.full((len(rows), longest), value, dtype=np.int64)
    for number, row in enumerate(rows):
        first = longest - len(row) if left else 0
        padded[number, first : first + len(row)] = row
    return torch.from_numpy(padded)


def _takes_token_types(model: torch.nn.Module) -> bool:
    """DistilBERT and others take none, whatever the tokenizer returns; RoBERTa has only type 0."""
    config: Any = model.config
    types = getattr(config, "type_vocab_size", None)
    accepted = "token_type_ids" in inspect.signature(model.forward).parameters
    return accepted and (types is None or types >= 2)
