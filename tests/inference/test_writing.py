"""Text as it is generated, token by token, with tokenizers of the two common kinds."""

from typing import Any

import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers
from transformers import PreTrainedTokenizerFast

from worker.inference.writing import Writer, _token

TEXTS = (
    "é漢",
    "👩\u200d👩\u200d👧 family",
    "שלום לכם",
    "naïve 漢字 \u202etext\u202c",
    "a\tb\r\n  c",
)


def byte_level() -> Any:
    """As of GPT-2, Llama 3 and SmolLM2; each byte is a token."""
    letters = sorted(pre_tokenizers.ByteLevel.alphabet())
    backend = Tokenizer(models.BPE({letter: n for n, letter in enumerate(letters)}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return PreTrainedTokenizerFast(tokenizer_object=backend)


def sentencepiece() -> Any:
    """As of Llama 2 and Mistral: words with a space in front, bytes for what it does not know."""
    pieces = ["<unk>", *(f"<0x{byte:02X}>" for byte in range(256)), *"▁abcdefghijklmnopqrstuvwxyz"]
    pieces += ["▁upon", "▁time", "▁once"]
    vocabulary = [(piece, -float(number)) for number, piece in enumerate(pieces)]
    backend = Tokenizer(models.Unigram(vocabulary, unk_id=0, byte_fallback=True))
    backend.normalizer = normalizers.Sequence(
        [normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")]
    )
    backend.decoder = decoders.Sequence(
        [
            decoders.Replace("▁", " "),
            decoders.ByteFallback(),
            decoders.Fuse(),
            decoders.Strip(" ", 1, 0),
        ]
    )
    return PreTrainedTokenizerFast(tokenizer_object=backend, unk_token="<unk>")


TOKENIZERS = {"byte level": byte_level(), "sentencepiece": sentencepiece()}


@pytest.fixture(params=TOKENIZERS)
def tokenizer(request: pytest.FixtureRequest) -> Any:
    return TOKENIZERS[request.param]


def ids_of(tokenizer: Any, text: str) -> list[int]:
    ids: list[int] = tokenizer(text)["input_ids"]
    return ids


def shown_by(writer: Writer, ids: list[int]) -> list[str]:
    """The text after each token that is read."""
    shown = []
    for token in ids:
        if not writer.is_done:
            writer.add(token)
            shown.append(writer.shown)
    return shown


@pytest.mark.parametrize("text", TEXTS)
def test_pieces_split_no_character(tokenizer: Any, text: str) -> None:
    ids = ids_of(tokenizer, text)
    writer = Writer(tokenizer, (), ())
    shown = shown_by(writer, ids)
    assert shown[-1] == text
    assert all(text.startswith(each) for each in shown)
    assert writer.choice().text == tokenizer.decode(ids)


@pytest.mark.parametrize("text", TEXTS)
def test_the_bytes_of_the_tokens_are_the_text(tokenizer: Any, text: str) -> None:
    """Also where a token is a part of a character."""
    found = [_token(tokenizer, token)[1] for token in ids_of(tokenizer, f"once {text}")]
    assert b"".join(found).decode().lstrip() == f"once {text}"


def test_an_incomplete_character_at_the_end(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "ab漢")[:-1]
    writer = Writer(tokenizer, (), ())
    assert shown_by(writer, ids)[-1] == "ab"
    assert writer.choice().text == tokenizer.decode(ids)
    assert writer.choice().text.startswith("ab\ufffd")


def test_a_text_that_goes_on_keeps_its_space(tokenizer: Any) -> None:
    """As transformers decodes prompt and answer together."""
    prompt, whole = (ids_of(tokenizer, text) for text in ("once 漢", "once 漢 upon 漢 time"))
    rest = whole[len(prompt) :]
    for last in (len(rest), -1, -3):  # to its end, and to the middle of a word
        writer = Writer(tokenizer, (), (), context=prompt[-8:])
        shown_by(writer, rest[:last])
        expected = tokenizer.decode(prompt + rest[:last])[len("once 漢") :]
        assert writer.choice().text == expected
    assert tokenizer.decode(prompt + rest) == "once 漢 upon 漢 time"


@pytest.mark.parametrize(
    ("stops", "kept"),
    [
        (["字é"], "ab漢"),  # over the border of tokens
        (["é!", "b"], "a"),
        (["xyz", "漢字"], "ab"),
        (["!?"], "ab漢字é!"),  # begun, and not ended
    ],
)
def test_stop_strings(tokenizer: Any, stops: list[str], kept: str) -> None:
    writer = Writer(tokenizer, (), stops)
    shown = shown_by(writer, ids_of(tokenizer, "ab漢字é!"))
    assert writer.choice().text == kept
    assert writer.choice().finish_reason == ("length" if stops == ["!?"] else "stop")
    # Nothing was shown that had to be taken back, nor a beginning of a stop string.
    assert all(kept.startswith(each) for each in shown)
    if stops == ["!?"]:
        assert shown[-1] == "ab漢字é"


def test_a_token_that_ends_the_text(tokenizer: Any) -> None:
    ids = ids_of(tokenizer, "ab")
    writer = Writer(tokenizer, {ids[-1]}, ())
    assert shown_by(writer, ids)[-1] == "a"
    assert writer.choice().finish_reason == "stop"
