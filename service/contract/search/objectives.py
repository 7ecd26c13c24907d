"""`objective` of a search: which metric of the evaluation it looks for the best value of."""

from typing import Annotated, Literal

from pydantic import Field

from service.contract.section import SpecModel
from service.contract.types import Name

Direction = Literal["minimize", "maximize"]
MOST_OBJECTIVES = 8
_LOSSES = ("loss", "perplexity", "kl", "ter", "wer", "cer")


class Objective(SpecModel):
    """A metric, and whether more of it is better."""

    metric: Name = Field(
        examples=["f1"],
        description="A metric of the evaluation; `eval_` may be left out.",
    )
    direction: Direction | None = Field(
        None,
        examples=["maximize"],
        description="Default: `minimize` for losses and perplexity, else `maximize`.",
    )

    @property
    def key(self) -> str:
        """The metric as an evaluation reports it."""
        return self.metric if self.metric.startswith("eval_") else f"eval_{self.metric}"

    @property
    def goal(self) -> Direction:
        if self.direction is not None:
            return self.direction
        name = self.metric.removeprefix("eval_")
        is_loss = any(name == loss or name.endswith(f"_{loss}") for loss in _LOSSES)
        return "minimize" if is_loss else "maximize"

    def is_better(self, one: float, other: float) -> bool:
        return one > other if self.goal == "maximize" else one < other


Objectives = Annotated[list[Objective], Field(min_length=1, max_length=MOST_OBJECTIVES)]
