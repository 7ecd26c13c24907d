"""RFC 9457 problem details, and the faults of a spec or of a query."""

from typing import Any

from pydantic import BaseModel, Field


class Fault(BaseModel):
    """One thing that is wrong with a request."""

    path: str = Field(
        description="The field, for example `training.learning_rate`; empty: the whole body."
    )
    code: str = Field(
        description="`unknown_field`, `missing_field`, `invalid_value`, `invalid_type`, "
        "`conflict`, `unsupported_option`, `moved_option`, `unknown_file`, `path_not_allowed` …"
    )
    message: str = Field(description="What is wrong, for a person.")
    given: Any = Field(None, description="The value that was given, shortened; secrets are hidden.")
    allowed: str | list[str] | None = Field(None, description="The values that are allowed.")
    suggestion: str | None = Field(None, description="The nearest right name or value.")


class Problem(BaseModel):
    """RFC 9457. `code` is stable; `detail` is for people and may change."""

    type: str = Field(description="`urn:finetune:problem:` and the code.")
    title: str
    status: int
    detail: str
    message: str = Field(
        description="Title, detail and the first faults in one line: what to print of the error."
    )
    code: str
    instance: str = Field(description="The path that was called.")
    request_id: str = Field(description="The X-Request-Id header; the server's log has it, too.")
    errors: list[Fault] | None = Field(None, description="With 422: every fault at once.")

    model_config = {
        "extra": "allow",
        "json_schema_extra": {
            "examples": [
                {
                    "type": "urn:finetune:problem:invalid_spec",
                    "title": "Invalid spec: 1 error",
                    "status": 422,
                    "detail": "`errors` lists each with its path and what is allowed there.",
                    "message": "Invalid spec: 1 error: training.learning_rte: unknown "
                    "field; did you mean `learning_rate`?",
                    "code": "invalid_spec",
                    "instance": "/v1/jobs",
                    "request_id": "4f0c2a6d",
                    "errors": [
                        {
                            "path": "training.learning_rte",
                            "code": "unknown_field",
                            "message": "unknown field; did you mean `learning_rate`?",
                            "given": 5e-05,
                            "allowed": None,
                            "suggestion": "learning_rate",
                        }
                    ],
                }
            ]
        },
    }
