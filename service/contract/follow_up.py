"""What a user may request of an ended job, which then runs again from a later stage."""

from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from service.contract.spec.hub import HubSpec
from service.contract.states import Action, Stage


class _FollowUp(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)


class Promote(_FollowUp):
    """Make the model of a checkpoint the job's model, and publish it."""

    action: Literal[Action.PROMOTE] = Action.PROMOTE
    step: int

    @property
    def stage(self) -> Stage:
        return Stage.TRAIN


class Publish(_FollowUp):
    """Push the finished model, whatever the job's own `hub` section is."""

    action: Literal[Action.PUBLISH] = Action.PUBLISH
    hub: HubSpec

    @property
    def stage(self) -> Stage:
        return Stage.PUBLISH


FollowUp = Annotated[Promote | Publish, Field(discriminator="action")]
_ADAPTER: TypeAdapter[FollowUp] = TypeAdapter(FollowUp)


def parsed(stored: dict[str, Any] | None) -> Promote | Publish | None:
    return None if stored is None else _ADAPTER.validate_python(stored)
