"""`hub` of a spec: where and when the model is pushed."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from service.contract.section import SpecModel
from service.contract.types import HubRepoId, Text


class HubSpec(SpecModel):
    """Push the finished model. Leave the section out to keep it here."""

    model_id: HubRepoId = Field(
        examples=["my-team/squad-distilbert"],
        description="`namespace/name`; a name alone is in the namespace of the operator's token. "
        "`prepare` asks the Hub whether the token may write there, and creates the repository.",
    )
    private: bool = Field(True, description="Of a repository that the job creates.")
    revision: Text = Field("main", description="Branch to commit to; created if it is missing.")
    commit_message: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    license: Annotated[str, StringConstraints(pattern=r"^[a-z0-9.-]{1,64}$")] | None = Field(
        None, description="Licence id for the model card; default: that of the base model's card."
    )
    strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = Field(
        "end",
        description="When the model is pushed: when the job ends; also at every checkpoint, while "
        "the training goes on; with the newest checkpoint beside it, as `last-checkpoint`; with "
        "each checkpoint, as `checkpoint-<step>`. A checkpoint that comes while another one is "
        "pushed waits, and gives way to a newer one.",
    )

    @property
    def pushes_while_training(self) -> bool:
        return self.strategy != "end"
