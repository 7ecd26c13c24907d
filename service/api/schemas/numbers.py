"""JSON has no NaN and no infinity: they travel as the strings `nan`, `inf` and `-inf`."""

from typing import Annotated, Any

from pydantic import BeforeValidator

from service.store.jobs import jsonable

Number = Annotated[float | str, BeforeValidator(jsonable)]
"""A number; a string only for `nan`, `inf` and `-inf`."""
Json = Annotated[dict[str, Any], BeforeValidator(jsonable)]
"""A JSON object, its numbers made safe."""
