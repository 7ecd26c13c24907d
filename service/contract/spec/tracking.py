"""`tracking` of a spec: what a job logs to MLflow."""

import re
from collections.abc import Iterator
from typing import Annotated

from pydantic import AfterValidator, Field, StringConstraints

from service.contract.fields import patterns
from service.contract.fields.section import SpecModel, rule
from service.contract.fields.types import Name


def _not_reserved(alias: str) -> str:
    if re.fullmatch(r"latest|v\d+", alias, re.IGNORECASE):
        raise ValueError("MLflow keeps this alias for itself")
    return alias


RegisteredName = Annotated[
    str, StringConstraints(min_length=1, max_length=200, pattern=patterns.REGISTERED_NAME)
]
# MLflow keeps `latest` and `v<number>` for itself.
Alias = Annotated[
    str,
    StringConstraints(max_length=200, pattern=patterns.MODEL_ALIAS),
    AfterValidator(_not_reserved),
]


class TrackingSpec(SpecModel):
    experiment_name: Name = "finetune"
    run_name: Name | None = Field(None, description="Default: the job's name, or its id.")
    tags: dict[Name, Annotated[str, StringConstraints(max_length=5000)]] = Field(
        default_factory=dict, max_length=50
    )
    log_model: bool = Field(
        default=True, description="Log the finished model as an MLflow artifact."
    )
    tensorboard: bool = Field(
        default=False,
        description="Write TensorBoard's event file of the training, as an artifact of the job "
        "and of its run: `tensorboard/events.out.tfevents.<job id>`.",
    )
    register_as: RegisteredName | None = Field(
        None,
        description="Register the finished model under this name in MLflow's model registry: one "
        "version for each job.",
        examples=["squad-distilbert"],
    )
    register_alias: Alias = Field(
        "newest", description="Alias that is moved to the version which the job registers."
    )

    @rule
    def _registers_what_is_logged(self) -> Iterator[str]:
        if self.register_as is not None and not self.log_model:
            yield "`register_as` needs `log_model: true`"
