"""`objective` of a search: which metric of the evaluation it looks for the best value of."""

from typing import Annotated, Literal

from pydantic import Field

from service.contract.fields.section import SpecModel
from service.contract.fields.types import Name
from service.contract.tasks.metric_directions import greater_is_better

Direction = Literal["minimize", "maximize"]
MOST_OBJECTIVES = 8


class Objective(SpecModel):
    """A metric, and whether more of it is better."""

    metric: Name = Field(
        examples=["f1"],
        description="A metric of the evaluation; `eval_` may be left out.",
    )
    direction: Direction | None = Field(
        None,
        examples=["maximize"],
        description="Default: the direction of the metric. Required for a metric without one, such "
        "as `gen_len`.",
    )

    @property
    def key(self) -> str:
        """The metric as an evaluation reports it."""
        return self.metric if self.metric.startswith("eval_") else f"eval_{self.metric}"

    @property
    def goal(self) -> Direction:
        if self.direction is not None:
            return self.direction
        return "minimize" if greater_is_better(self.metric) is False else "maximize"

    def is_better(self, one: float, other: float) -> bool:
        return one > other if self.goal == "maximize" else one < other


Objectives = Annotated[list[Objective], Field(min_length=1, max_length=MOST_OBJECTIVES)]
