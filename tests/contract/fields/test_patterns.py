"""Every pattern has words: no error shows a regular expression."""

from collections.abc import Iterator
from typing import Any

from service.contract.fields.patterns import WORDS
from service.settings import Settings
from tests.support.openapi import document


def patterns_in(schema: Any) -> Iterator[str]:
    if isinstance(schema, dict):
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            yield pattern
        # The keys of a mapping whose names are restricted.
        yield from schema.get("patternProperties", {})
        for inner in schema.values():
            yield from patterns_in(inner)
    elif isinstance(schema, list):
        for inner in schema:
            yield from patterns_in(inner)


def test_of_the_http_api() -> None:
    found = set(patterns_in(document()))
    assert len(found) > 8
    assert found <= WORDS.keys()


def test_of_the_settings() -> None:
    found = set(patterns_in(Settings.model_json_schema()))
    assert found
    assert found <= WORDS.keys()
