"""`hub` of a spec: where and when the model is pushed."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from service.contract import patterns
from service.contract.section import SpecModel
from service.contract.types import HubRepoId, Text


class HubSpec(SpecModel):
    """Push the finished model to the Hub. Without this section it stays on the server."""

    model_id: HubRepoId = Field(
        examples=["my-team/squad-distilbert"],
        description="`namespace/name`; a name alone is in the namespace of the operator's token. "
        "`prepare` asks the Hub whether the token may write there, and creates the repository.",
    )
    private: bool = Field(
        default=True, description="Whether a repository that the job creates is private."
    )
    revision: Text = Field("main", description="Branch to commit to; created if it is missing.")
    commit_message: Annotated[str, StringConstraints(min_length=1, max_length=500)] | None = None
    license: Annotated[str, StringConstraints(pattern=patterns.LICENSE)] | None = Field(
        None, description="Licence id for the model card; default: that of the base model's card."
    )
    strategy: Literal["end", "every_save", "checkpoint", "all_checkpoints"] = Field(
        "end",
        description="When the model is pushed. `end`: when the job ends; `every_save`: also at "
        "every checkpoint, during the training; `checkpoint`: with the latest checkpoint, as "
        "`last-checkpoint`; `all_checkpoints`: with each checkpoint, as `checkpoint-<step>`. A "
        "checkpoint written during a push waits, and is skipped if a newer one is written first.",
    )

    @property
    def pushes_while_training(self) -> bool:
        return self.strategy != "end"
