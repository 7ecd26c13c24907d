"""JSON has no NaN and no infinity: they travel as the strings `nan`, `inf` and `-inf`."""

from typing import Annotated, Any, Final

from pydantic import BeforeValidator, WithJsonSchema

from service.store.database import jsonable

Number = Annotated[float | str, BeforeValidator(jsonable)]
"""A number; a string only for `nan`, `inf` and `-inf`."""
Json = Annotated[dict[str, Any], BeforeValidator(jsonable)]
"""A JSON object, its numbers made safe."""
MODEL: Final = "x-model"
"""In a schema: the component of the OpenAPI document that describes the value."""
StoredSpec = Annotated[Json, WithJsonSchema({MODEL: "JobSpec"})]
"""A spec as it was stored, perhaps by an older release: described, and never validated again."""
StoredSearchSpec = Annotated[Json, WithJsonSchema({MODEL: "SearchSpec"})]
"""The same of a search."""
