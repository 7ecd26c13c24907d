"""The OpenAPI document, which takes seconds to build: once for all tests of a process."""

from functools import cache
from typing import Any

from service.api.app import create_app
from service.settings import Settings


@cache
def document() -> dict[str, Any]:
    """That of an app with default settings; the tests only read it."""
    return create_app(Settings()).openapi()
