"""How the processes of one training work together: `resources` of a job.

Names and meanings are those of `transformers.TrainingArguments`, `ddp_…` without its prefix.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Literal

from pydantic import Field, field_validator

from service.contract.fields.section import SpecModel, rule
from service.contract.spec.deepspeed import DeepSpeedSpec
from service.contract.spec.fsdp import FSDPSpec

MOST_PROCESSES = 64


class DDPSpec(SpecModel):
    """Each process holds the whole model and trains on its share of every batch."""

    type: Literal["ddp"] = Field("ddp", description="Data parallel.")
    timeout: int = Field(
        1800,
        ge=1,
        le=7 * 86400,
        description="Seconds that a process waits for the gradients of the others.",
    )
    find_unused_parameters: bool | None = Field(
        None,
        description="Look in each step for weights that got no gradient. Default: true, but false "
        "with `activation_checkpointing`, as in Trainer.",
    )
    bucket_cap_mb: int = Field(
        25, ge=1, le=1_000_000, description="Gradients that are sent at once."
    )
    broadcast_buffers: bool = Field(default=True, description="Buffers follow the first process's.")
    gradient_as_bucket_view: bool = Field(
        default=False, description="Saves a copy of the gradients."
    )
    static_graph: bool = Field(
        default=False, description="The same weights get gradients in every step of the training."
    )


StrategySpec = DDPSpec | FSDPSpec | DeepSpeedSpec
_ByType = Annotated[StrategySpec, Field(discriminator="type")]
_StrategyType = Literal["ddp", "fsdp", "deepspeed"]


class ResourcesSpec(SpecModel):
    gpus: int | None = Field(
        None,
        ge=0,
        le=MOST_PROCESSES,
        description="0: train on the CPU; N: wait for a worker that has this many GPUs; null: one "
        "GPU where the worker has some.",
    )
    num_processes: int | None = Field(
        None,
        ge=1,
        le=MOST_PROCESSES,
        description="Processes of one training, one for each GPU; on a CPU 1 unless given.",
    )
    strategy: StrategySpec | None = Field(
        None,
        discriminator="type",
        description="How several processes share the work; `ddp` unless given.",
    )

    @field_validator(
        "strategy", mode="before", json_schema_input_type=_ByType | _StrategyType | None
    )
    @classmethod
    def _expand_strategy(cls, value: Any) -> Any:
        """`strategy: ddp` is that strategy with its defaults; options without a type are DDP's."""
        if isinstance(value, dict):
            return {"type": "ddp", **value}
        return {"type": value} if isinstance(value, str) else value

    @rule
    def _each_gpu_has_one_process(self) -> Iterator[str]:
        if self.gpus and self.num_processes not in {None, self.gpus}:
            yield (
                f"there is one process for each GPU, but `gpus` is {self.gpus} and "
                f"`num_processes` is {self.num_processes}: leave `num_processes` out"
            )

    @rule
    def _processes_have_their_place(self) -> Iterator[str]:
        if self.gpus is None and self.processes > 1:
            yield (
                f"`num_processes: {self.processes}` needs `gpus`: as many, or 0 for processes on "
                "the CPU"
            )

    @rule
    def _a_strategy_needs_several_processes(self) -> Iterator[str]:
        if self.strategy is not None and self.processes == 1:
            yield (
                "`strategy` is for several processes: set `gpus`, or `gpus: 0` and `num_processes`"
            )

    @property
    def processes(self) -> int:
        """Of one training; a pure function of the spec, so that a resumed job has as many."""
        return self.num_processes or self.gpus or 1

    @property
    def chosen_strategy(self) -> StrategySpec:
        return self.strategy or DDPSpec()
