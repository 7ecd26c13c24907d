"""`hub` of a spec: where and when the model is pushed."""

from typing import Annotated, Literal

from pydantic import Field, StringConstraints

from service.contract.fields import patterns
from service.contract.fields.section import SpecModel
from service.contract.fields.types import HubRepoId, Text


class HubSpec(SpecModel):
    """Push the finished model to the Hub. Without this section it stays on the server."""

    model_id: HubRepoId = Field(
        examples=["my-team/squad-distilbert"],
        description="`namespace/name`; a name alone is in the namespace of the job's token. "
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
    always_push: bool = Field(
        default=False,
        description="Whether no checkpoint is skipped, as `hub_always_push` of the Trainer: each "
        "waits for its turn. Those that still wait when the training ends are pushed before the "
        "finished model, unless `save_total_limit` has removed them by then.",
    )

    @property
    def pushes_while_training(self) -> bool:
        return self.strategy != "end"
