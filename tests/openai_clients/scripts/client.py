"""The client of a script, which compares every answer that it takes apart."""

import json
import sys
from collections.abc import Callable
from typing import Any

import openai
import pytest

from tests.openai_clients.scripts.strict import require_exact


def connected(**options: Any) -> openai.OpenAI:
    """As OPENAI_BASE_URL and OPENAI_API_KEY say; the release that the tests mean."""
    wanted = sys.argv[1]
    assert openai.__version__ == wanted, f"openai {openai.__version__} instead of {wanted}"
    return openai.OpenAI(**options)


def exact(resource: Any, method: str, /, *arguments: Any, **options: Any) -> Any:
    """What `resource.method` returns, after its JSON was compared with the type of it."""
    raw = getattr(resource.with_raw_response, method)(*arguments, **options)
    parsed = raw.parse()
    require_exact(json.loads(raw.http_response.content), type(parsed))
    assert raw.headers["x-request-id"]
    assert int(raw.headers["openai-processing-ms"]) >= 0
    return parsed


def refused(kind: type[openai.APIStatusError], call: Callable[[], Any]) -> Any:
    """The error that `call` raises, whose body is OpenAI's envelope: all four keys."""
    with pytest.raises(kind) as caught:
        call()
    error = caught.value
    assert isinstance(error.body, dict), error.body
    assert {"message", "type", "param", "code"} <= error.body.keys(), error.body
    assert error.message
    assert error.request_id
    return error
