"""Texts of chat templates as tokens: of spans of characters, and those that control turns."""

from dataclasses import dataclass
from typing import Any

import numpy as np

from worker.data.table import RowError
from worker.tasks.chat.jinja import ANSWER


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
        """The tokens that have any of the characters `first` to `end`, at least one character.

        Raises RowError if a slow tokenizer splits the text elsewhere.
        """
        if self._offsets is None:
            return range(self._count(first), self._count(end))
        starts, ends = self._offsets[:, 0], self._offsets[:, 1]
        return range(
            int(np.searchsorted(ends, first, side="right")),
            int(np.searchsorted(starts, end, side="left")),
        )

    def trailing(self, span: range, special: frozenset[int]) -> range:
        """The last tokens of `span`: those in `special`, and white space."""
        first = span.stop
        while first > span.start and self._closes(self.ids[first - 1], special):
            first -= 1
        return range(first, span.stop)

    def _closes(self, token: int, special: frozenset[int]) -> bool:
        return token in special or not self._tokenizer.decode([token]).strip()

    def _count(self, characters: int) -> int:
        """The tokens of the first `characters`."""
        ids = _encoded(self._tokenizer, self._text[:characters], offsets=False)["input_ids"]
        if self.ids[: len(ids)] != ids:
            raise RowError(
                "the model's slow tokenizer reads the text of a turn as other tokens than the same "
                "text within the conversation, so that the trained tokens cannot be found",
                reason="not_a_prefix",
            )
        return len(ids)


@dataclass(frozen=True)
class Control:
    """The special tokens of a template, by which the model distinguishes turns."""

    special: frozenset[int]
    """Each special token of the tokenizer."""
    ends: frozenset[int]
    """Those that end a turn of the assistant: EOS, and what the template writes after it."""
    end_texts: tuple[str, ...]
    reserved: tuple[str, ...]
    """Texts that a turn must not have: EOS, BOS, and what the template writes between turns."""

    @classmethod
    def from_template(cls, tokenizer: Any, probe: str) -> "Control":
        """`probe` is that of the template."""
        added = tokenizer.added_tokens_decoder
        known = frozenset({tokenizer.eos_token_id, tokenizer.bos_token_id} - {None})
        special = known | {number for number, token in added.items() if token.special}
        written = [token for token in Tokenized(tokenizer, probe).ids if token in special]
        after = Tokenized(tokenizer, probe.rpartition(ANSWER)[2]).ids
        closing = [token for token in after if token in special][:1]
        ends = frozenset({tokenizer.eos_token_id, *closing} - {None})
        texts = tokenizer.convert_ids_to_tokens(sorted(ends))
        reserved = tokenizer.convert_ids_to_tokens(sorted(known.union(written)))
        return cls(special, ends, tuple(texts), tuple(reserved))


def _encoded(tokenizer: Any, text: str, *, offsets: bool) -> Any:
    return tokenizer(
        text,
        add_special_tokens=False,
        return_attention_mask=False,
        return_token_type_ids=False,
        return_offsets_mapping=offsets,
        verbose=False,  # no warnings about long texts
    )
