"""No key, token or password is shown, whatever an error says around it."""

import pytest

from service.system.masking import holds_secret, mask

SECRETS = [
    ("Illegal header value b'Bearer ft-abc def '", "Illegal header value ***"),
    ("no active key 'ft-Zm9vYmFyYmF6 '", "no active key '*** '"),
    ("Authorization: Bearer abc.def", "Authorization: Bearer ***"),
    ("Authorization: Bearer <abc>def", "Authorization: Bearer ***"),
    ("cannot reach redis://:pa/ss@host:6379/0", "cannot reach redis://***@host:6379/0"),
    ("postgresql+psycopg://u:p@db/x", "postgresql+psycopg://***@db/x"),
    ("https://hf_abcdefgh@huggingface.co/x", "https://***@huggingface.co/x"),
    ("?token=abc&x=1", "?token=***&x=1"),
    ("password=hunter2 host=db", "password=*** host=db"),
    ("\u00e9ft-abcdefghijkl", "\u00e9***"),
    ("hf_abcdefghijkl and ghp_abcdefghijk", "*** and ***"),
]
HARMLESS = [
    "https://huggingface.co/org/model at main",
    "http://127.0.0.1:8000/v1/jobs",
    "the left-handed draft-board",
    "me@host and 3 tokens",
    "Send `Authorization: Bearer <key>`. Ask for one.",
]


@pytest.mark.parametrize(("text", "shown"), SECRETS)
def test_secrets_are_masked(text: str, shown: str) -> None:
    assert mask(text) == shown
    assert holds_secret(text)


@pytest.mark.parametrize("text", HARMLESS)
def test_other_text_stays(text: str) -> None:
    assert mask(text) == text
    assert not holds_secret(text)
