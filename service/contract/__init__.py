"""Pure pydantic and enums: all that crosses between API, worker and stage."""
