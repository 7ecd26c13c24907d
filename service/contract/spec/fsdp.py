"""`resources.strategy` with `type: fsdp`: weights, gradients and optimizer state in parts.

Names and meanings are those of Accelerate's FullyShardedDataParallelPlugin, version 2 of FSDP, and
of the keys of `transformers.TrainingArguments.fsdp_config`.
"""

from collections.abc import Iterator
from typing import Annotated, Any, Final, Literal

from pydantic import Field, ValidationInfo, model_validator

from service.contract.fields.bounds import MOST_ROWS
from service.contract.fields.section import SpecModel, refused_names, rule
from service.contract.fields.types import MOST_ENTRIES, Name, ShortEnough

_AUTOCAST: Final = "default: the weights' own, and `training.bf16` computes in bfloat16 from it"
_ON_GPUS: Final = "default with `training.bf16` on GPUs: `bfloat16` and `float32`"

# Options of the plugin that are refused, and why.
REFUSED_FSDP: Final[dict[str, str]] = {
    "activation_checkpointing": "it is `training.activation_checkpointing`, for all strategies",
    "activation_checkpointing_offload": "it is `offload` in `training."
    "activation_checkpointing_kwargs`, for all strategies",
    "backward_prefetch": "it belongs to version 1; version 2 always fetches the next block early",
    "cpu_ram_efficient_loading": "always so: one process loads the model, each keeps its part",
    "forward_prefetch": "it belongs to version 1; version 2 always fetches the next block early",
    "fsdp_version": "it is always 2",
    "ignored_modules": "all weights are split",
    "limit_all_gathers": "it belongs to version 1; version 2 always limits them",
    "sharding_strategy": "it belongs to version 1: use `reshard_after_forward`",
    "state_dict_type": "checkpoints always hold whole weights, as those of one process",
    "sync_module_states": "one process loads the weights, and all others take them from it",
    "use_orig_params": "it belongs to version 1; version 2 always keeps the model's own weights",
}


class MixedPrecisionPolicySpec(SpecModel):
    """As `torch.distributed.fsdp.MixedPrecisionPolicy`."""

    param_dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description=f"Of the gathered weights; {_AUTOCAST}."
    )
    reduce_dtype: Literal["float32", "bfloat16"] | None = Field(
        None, description="Gradients are summed up in it; default: `param_dtype`."
    )


class FSDPSpec(SpecModel):
    """Each process holds a part of every weight, and gathers a block's when it computes it."""

    type: Literal["fsdp"] = Field("fsdp", description="Fully sharded data parallel.")
    timeout: int = Field(
        1800, ge=1, le=7 * 86400, description="Seconds that a process waits for the others."
    )
    reshard_after_forward: bool = Field(
        default=True,
        description="Free a block's gathered weights after its forward pass and gather them again "
        "for the backward pass; false takes more memory and sends less.",
    )
    auto_wrap_policy: Literal["transformer_based_wrap", "size_based_wrap", "no_wrap"] = Field(
        "transformer_based_wrap",
        description="What is gathered at once: each block, each module of `min_num_params` "
        "weights, or the whole model.",
    )
    transformer_layer_cls_to_wrap: (
        Annotated[list[Name], Field(min_length=1, max_length=MOST_ENTRIES), ShortEnough] | None
    ) = Field(None, description="Classes of the blocks; default: what the model's type names.")
    min_num_params: int | None = Field(
        None, ge=1, le=MOST_ROWS, description="With `size_based_wrap`; default: 100,000,000."
    )
    cpu_offload: bool = Field(
        default=False,
        description="Keep weights, gradients and optimizer state on the CPU between uses.",
    )
    mixed_precision_policy: MixedPrecisionPolicySpec | None = Field(
        None,
        description=f"`{{param_dtype: …, reduce_dtype: …}}`, `float32` or `bfloat16`; {_ON_GPUS}.",
    )
    sync_each_batch: bool = Field(
        default=False,
        description="Sum gradients up over the processes after each part of an accumulated batch: "
        "less memory, more is sent.",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_nothing_refused(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        return cls.without_refused(value, info, refused_names(value, REFUSED_FSDP))

    @rule
    def _sizes_are_for_wrapping_by_size(self) -> Iterator[str]:
        if self.min_num_params is not None and self.auto_wrap_policy != "size_based_wrap":
            yield "`min_num_params` needs `auto_wrap_policy: size_based_wrap`"

    @rule
    def _classes_are_for_wrapping_by_class(self) -> Iterator[str]:
        by_class = self.auto_wrap_policy == "transformer_based_wrap"
        if self.transformer_layer_cls_to_wrap and not by_class:
            yield "`transformer_layer_cls_to_wrap` needs `auto_wrap_policy: transformer_based_wrap`"

    @property
    def least_params(self) -> int:
        return self.min_num_params or 100_000_000
