"""Parses untrusted bodies: JSON as RFC 8259 defines it, or YAML with the same values."""

import json
import math
from typing import Any, Final, NoReturn

from anyio import CapacityLimiter, to_thread
from fastapi import Request
from starlette.requests import ClientDisconnect

from service.api.problems.errors import (
    BodyTooLargeError,
    ClientClosedError,
    InvalidJsonError,
    InvalidYamlError,
    UnsupportedMediaTypeError,
)
from service.contract.spec import spec_yaml

# Larger integers are not portable between JSON implementations and databases.
_LONGEST_INTEGER: Final = 18
_MOST_UNUSABLE: Final = 100
"""The first of them are enough to refuse a body."""
_LARGEST_YAML: Final = 128 * 1024
"""Bytes. Parsing YAML takes a hundred times as long as JSON: here at most about a second."""
_YAML: Final = frozenset({"application/yaml", "application/x-yaml", "text/yaml", "text/x-yaml"})


_LARGE: Final = 64 * 1024
"""Bytes of JSON that take a millisecond or more."""
# Few threads parse, so that the others stay free for other requests.
_PARSERS: Final = CapacityLimiter(2)


class Unusable:
    """A number that JSON or the database cannot store. No field accepts it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


async def read(request: Request) -> Any:
    """The body's value; numbers out of range and NaN are `Unusable`. Raises InvalidJsonError and
    InvalidYamlError."""
    if request.headers.get("content-encoding", "identity").strip().lower() != "identity":
        raise UnsupportedMediaTypeError("Send the body without a Content-Encoding.")
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type == "application/json" or media_type.endswith("+json"):
        body = await _whole(request)
        if len(body) < _LARGE:
            return parse_json(body)
        return await to_thread.run_sync(parse_json, body, limiter=_PARSERS)
    if media_type in _YAML or media_type.endswith("+yaml"):
        # On a thread, so that the other requests are answered in the meantime.
        return await to_thread.run_sync(parse_yaml, await _whole(request), limiter=_PARSERS)
    raise UnsupportedMediaTypeError("Send the body as application/json or application/yaml.")


async def _whole(request: Request) -> bytes:
    try:
        return await request.body()
    except ClientDisconnect:
        raise ClientClosedError("The body was not complete.") from None


def parse_yaml(body: bytes) -> Any:
    """The value of a YAML document in UTF-8, as `parse_json`. Raises InvalidYamlError."""
    if len(body) > _LARGEST_YAML:
        raise BodyTooLargeError(
            f"A body in YAML may have at most {_LARGEST_YAML} bytes. Send it as JSON."
        )
    try:
        value = spec_yaml.parse(body.decode("utf-8"))
        json.dumps(value, ensure_ascii=False).encode("utf-8")
    except UnicodeDecodeError as error:
        reason = f"byte {error.start} is not UTF-8"
    except UnicodeEncodeError:
        reason = "a string holds half of a surrogate pair"
    except RecursionError:
        reason = "it is nested too deeply"
    except ValueError as error:  # SpecYamlError
        reason = str(error)
    else:
        return _Numbers().checked(value)
    raise InvalidYamlError(f"The body is not valid YAML: {reason}.")


def parse_json(body: bytes) -> Any:
    """The value of a JSON text in UTF-8. Raises InvalidJsonError."""
    try:
        numbers = _Numbers()
        value = json.loads(
            body.decode("utf-8"),
            parse_int=numbers.integer,
            parse_float=numbers.real,
            parse_constant=numbers.unusable,
        )
        if b"\\u" in body:
            # JSON can escape a lone surrogate, but no text can store it.
            json.dumps(value, ensure_ascii=False, default=str).encode("utf-8")
    except RecursionError:
        _refuse("it is nested too deeply")
    except UnicodeDecodeError as error:
        _refuse(f"byte {error.start} is not UTF-8")
    except UnicodeEncodeError:
        _refuse("a string holds half of a surrogate pair")
    except json.JSONDecodeError as error:
        _refuse(f"{error.msg} at line {error.lineno}, column {error.colno}")
    return value


def _refuse(reason: str) -> NoReturn:
    raise InvalidJsonError(f"The body is not valid JSON: {reason}.") from None


class _Numbers:
    """Numbers as json.loads finds them, or as YAML has them."""

    def __init__(self) -> None:
        self._unusable = 0

    def checked(self, value: Any) -> Any:
        """`value`, if JSON and the database can store every number in it."""
        if isinstance(value, dict):
            return {name: self.checked(item) for name, item in value.items()}
        if isinstance(value, list):
            return [self.checked(item) for item in value]
        if isinstance(value, float):
            return self.real(str(value))
        if isinstance(value, int) and not isinstance(value, bool):
            return self.integer(str(value))
        return value

    def integer(self, text: str) -> Any:
        return int(text) if len(text.lstrip("-")) <= _LONGEST_INTEGER else self.unusable(text)

    def real(self, text: str) -> Any:
        value = float(text)
        return value if math.isfinite(value) else self.unusable(text)

    def unusable(self, text: str) -> Unusable | None:
        self._unusable += 1
        return Unusable(text) if self._unusable <= _MOST_UNUSABLE else None
