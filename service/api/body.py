"""Parses JSON as RFC 8259 defines it, from untrusted bodies."""

import json
import math
from typing import Any, Final, NoReturn

from fastapi import Request

from service.api.errors import InvalidJsonError, UnsupportedMediaTypeError

# Larger integers are not portable between JSON implementations and databases.
_LONGEST_INTEGER: Final = 18
_MOST_UNUSABLE: Final = 100
"""The first of them are enough to refuse a body."""


class Unusable:
    """A number that JSON or the database cannot represent. No field accepts it."""

    def __init__(self, text: str) -> None:
        self.text = text

    def __str__(self) -> str:
        return self.text


async def read_json(request: Request) -> Any:
    """The body's value; numbers out of range and NaN are `Unusable`. Raises InvalidJsonError."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json" and not media_type.endswith("+json"):
        raise UnsupportedMediaTypeError("Send the body as application/json.")
    return parse(await request.body())


def parse(body: bytes) -> Any:
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
    """The hooks of json.loads for numbers."""

    def __init__(self) -> None:
        self._unusable = 0

    def integer(self, text: str) -> Any:
        return int(text) if len(text.lstrip("-")) <= _LONGEST_INTEGER else self.unusable(text)

    def real(self, text: str) -> Any:
        value = float(text)
        return value if math.isfinite(value) else self.unusable(text)

    def unusable(self, text: str) -> Unusable | None:
        self._unusable += 1
        return Unusable(text) if self._unusable <= _MOST_UNUSABLE else None
