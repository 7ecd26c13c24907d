"""Texts of chat templates as tokens, with the tokens of any span of characters."""

from collections.abc import Iterable
from typing import Any

import numpy as np

from worker.data.table import RowError


class Tokenized:
    """One text; the template has written the special tokens, so the tokenizer adds none."""

    def __init__(self, tokenizer: Any, text: str) -> None:
        self._tokenizer = tokenizer
        self._text = text
        encoded = _encoded(tokenizer, text, offsets=tokenizer.is_fast)
        self.ids: list[int] = encoded["input_ids"]
        self._offsets = None
        if tokenizer.is_fast:
            self._offsets = np.array(encoded["offset_mapping"], dtype=np.int64).reshape(-1, 2)

    def span(self, first: int, end: int) -> range:
        """The tokens that have any of the characters `first` to `end`, of which there is one.

        Raises RowError if a slow tokenizer splits the text elsewhere.
        """
        if self._offsets is None:
            return range(self._count(first), self._count(end))
        starts, ends = self._offsets[:, 0], self._offsets[:, 1]
        return range(
            int(np.searchsorted(ends, first, side="right")),
            int(np.searchsorted(starts, end, side="left")),
        )

    def last_of(self, span: range, ids: frozenset[int]) -> int | None:
        """The place of the last token of `span` that is in `ids`, if only white space follows."""
        for place in reversed(span):
            if self.ids[place] in ids:
                return place
            if self._tokenizer.decode([self.ids[place]]).strip():
                return None
        return None

    def _count(self, characters: int) -> int:
        """The tokens of the first `characters`."""
        ids = _encoded(self._tokenizer, self._text[:characters], offsets=False)["input_ids"]
        if self.ids[: len(ids)] != ids:
            raise RowError(
                "the model's slow tokenizer reads the text of a turn as other tokens than the same "
                "text within the conversation, so that what is trained cannot be told",
                reason="not_a_prefix",
            )
        return len(ids)


def turn_ends(tokenizer: Any) -> frozenset[int]:
    """The tokens that can end a turn: EOS, and the special tokens that were added."""
    added: Iterable[tuple[int, Any]] = tokenizer.added_tokens_decoder.items()
    special = {number for number, token in added if token.special}
    return frozenset(special | ({tokenizer.eos_token_id} - {None}))


def _encoded(tokenizer: Any, text: str, *, offsets: bool) -> Any:
    return tokenizer(
        text,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=offsets,
        verbose=False,  # no warnings about long texts
    )
