"""Text as it is generated: pieces of whole characters, stop strings, and likely tokens."""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, Literal

import torch
from tokenizers.decoders import DecodeStream
from transformers import LogitsProcessor, StoppingCriteria

from service.contract.interactive.predictions import Choice, Logprob, TokenLogprob


@dataclass
class Writer:
    """The text of one choice, token by token."""

    tokenizer: Any
    ends: Collection[int]
    stops: Sequence[str]
    context: Sequence[int] = ()
    """What is before the text, which then begins as the rest of a text does."""
    ids: list[int] = field(default_factory=list)
    logprobs: list[TokenLogprob] = field(default_factory=list)
    is_done: bool = False
    reason: Literal["stop", "length"] = "length"
    _text: str = ""

    def __post_init__(self) -> None:
        self._stream = DecodeStream(ids=list(self.context), skip_special_tokens=True)

    def add(self, token: int) -> None:
        """Before it is done."""
        self.ids.append(token)
        if token in self.ends:
            self._finish()
            return
        piece = self._stream.step(self.tokenizer.backend_tokenizer, token)
        if piece:
            searched = max(0, len(self._text) - max(map(len, self.stops), default=0))
            self._text += piece
            self._cut_at_stop(searched)

    def _cut_at_stop(self, searched: int) -> None:
        places = [self._text.find(stop, searched) for stop in self.stops]
        found = [place for place in places if place >= 0]
        if found:
            self._text = self._text[: min(found)]
            self._finish()

    def _finish(self) -> None:
        self.is_done, self.reason = True, "stop"

    @property
    def shown(self) -> str:
        """Without an end that may become a stop string."""
        if self.is_done:
            return self._text
        held = max((_overlap(self._text, stop) for stop in self.stops), default=0)
        return self._text[: len(self._text) - held]

    def choice(self) -> Choice:
        """With what an incomplete character at the end decodes to."""
        text = self._text
        if not self.is_done:
            before, whole = self._decoded(self.context), self._decoded([*self.context, *self.ids])
            rest = whole[len(before) :]
            text = rest if rest.startswith(text) else text
        return Choice(text=text, finish_reason=self.reason, logprobs=self.logprobs or None)

    def _decoded(self, ids: Sequence[int]) -> str:
        return str(self.tokenizer.decode(list(ids), skip_special_tokens=True))


def _overlap(text: str, stop: str) -> int:
    """The length of the longest end of `text` that `stop` begins with."""
    lengths = range(min(len(text), len(stop) - 1), 0, -1)
    return next((length for length in lengths if text.endswith(stop[:length])), 0)


class WriterFeed(StoppingCriteria):
    """Passes each new token to its writer; ends a row when its writer is done, and all of them when
    `is_stopped` is true. `written` is called after each step."""

    def __init__(
        self,
        writers: Sequence[Writer],
        written: Callable[[list[str]], None],
        is_stopped: Callable[[], bool],
        likely: "LogprobRecorder | None",
    ) -> None:
        self._writers = writers
        self._written = written
        self._is_stopped = is_stopped
        self._likely = likely

    def __call__(self, input_ids: Any, scores: Any, **_: Any) -> Any:  # noqa: ARG002
        for number, (writer, token) in enumerate(
            zip(self._writers, input_ids[:, -1].tolist(), strict=True)
        ):
            if writer.is_done:
                continue
            if self._likely is not None:
                writer.logprobs.append(self._likely.logprob(number, token))
            writer.add(token)
        self._written([writer.shown for writer in self._writers])
        everything = self._is_stopped()
        ended = [everything or writer.is_done for writer in self._writers]
        return torch.tensor(ended, device=input_ids.device)


class LogprobRecorder(LogitsProcessor):
    """Keeps the log-probabilities of the next token, before penalties and temperature."""

    def __init__(self, tokenizer: Any, top: int) -> None:
        self._tokenizer = tokenizer
        self._top = top
        self._logprobs: Any = None

    def __call__(self, input_ids: Any, scores: Any) -> Any:  # noqa: ARG002
        self._logprobs = torch.log_softmax(scores.float(), dim=-1)
        return scores

    def logprob(self, row: int, token: int) -> TokenLogprob:
        values = self._logprobs[row]
        best = torch.topk(values, self._top) if self._top else None
        top = [] if best is None else zip(best.indices.tolist(), best.values.tolist(), strict=True)
        return TokenLogprob(
            **self._described(token, values[token].item()),
            top=[Logprob(**self._described(other, value)) for other, value in top],
        )

    def _described(self, token: int, value: float) -> dict[str, Any]:
        text, content = _token(self._tokenizer, token)
        # JSON has no infinity, so an impossible token gets a very small value.
        return {"token": text, "logprob": max(value, -9999.0), "bytes": list(content)}


def _token(tokenizer: Any, token: int) -> tuple[str, bytes]:
    """Its text, and its UTF-8, which may be a part of a character's."""
    text, name = str(tokenizer.decode([token])), str(tokenizer.convert_ids_to_tokens(token))
    if name.startswith(_SPACE) and not text.startswith(" "):
        text = f" {text}"  # which is left out at the beginning of a text
    if _INCOMPLETE not in text:
        return text, text.encode()
    if found := _BYTE.fullmatch(name):
        return text, bytes.fromhex(found[1])
    if all(letter in _BYTES_OF for letter in name):
        return text, bytes(_BYTES_OF[letter] for letter in name)
    return text, text.encode()


def _byte_letters() -> dict[str, int]:
    """The letters that byte-level tokenizers write bytes as: those that can be seen stay, and the
    others are counted from 256."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), 256)]
    others = [byte for byte in range(256) if byte not in seen]
    return {chr(byte): byte for byte in seen} | {
        chr(256 + number): byte for number, byte in enumerate(others)
    }


_INCOMPLETE: Final = "\ufffd"
_SPACE: Final = "\u2581"
_BYTE: Final = re.compile(r"<0x([0-9A-F]{2})>")
_BYTES_OF: Final = _byte_letters()


class Penalties(LogitsProcessor):
    """OpenAI's: less for each token that the answer has already, and for each time that it has."""

    def __init__(self, prompt_tokens: int, presence: float, frequency: float) -> None:
        self._prompt_tokens = prompt_tokens
        self._presence = presence
        self._frequency = frequency

    def __call__(self, input_ids: Any, scores: Any) -> Any:
        written = input_ids[:, self._prompt_tokens :]
        counts = torch.zeros_like(scores).scatter_add_(
            1, written, torch.ones_like(written, dtype=scores.dtype)
        )
        return scores - self._frequency * counts - self._presence * (counts > 0).to(scores.dtype)
