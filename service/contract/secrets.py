"""`secrets` of a spec: which of the project's secrets the job is given."""

from typing import Annotated

from pydantic import Field, StringConstraints

from service.contract import patterns
from service.contract.section import SpecModel

SecretName = Annotated[str, StringConstraints(pattern=patterns.SECRET_NAME)]


class SecretsSpec(SpecModel):
    """Names of secrets that `PUT /v1/secrets/{name}` has set; a spec never holds a value."""

    hub_token: SecretName | None = Field(
        None,
        examples=["my-hub-token"],
        description="The Hub token with which `prepare` downloads and `publish` pushes. Default: "
        "the operator's, which only jobs of the default project are given.",
    )
