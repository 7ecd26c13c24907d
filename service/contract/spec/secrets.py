"""`secrets` of a spec: which of the project's secrets the job is given."""

from pydantic import Field

from service.contract.fields.section import SpecModel
from service.contract.fields.types import SecretName


class SecretsSpec(SpecModel):
    """Names of secrets that `PUT /v1/secrets/{name}` has set; a spec never holds a value."""

    hub_token: SecretName | None = Field(
        None,
        examples=["my-hub-token"],
        description="The Hub token with which `prepare` downloads and `publish` pushes. Default: "
        "the operator's, which only jobs of the default project are given.",
    )
