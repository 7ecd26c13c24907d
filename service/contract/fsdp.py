"""`resources.strategy` with `type: fsdp`: weights, gradients and optimizer state in parts.

Names and meanings are those of Accelerate's FullyShardedDataParallelPlugin, version 2 of FSDP, and
of the keys of `transformers.TrainingArguments.fsdp_config`.
"""

from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

from pydantic import Field, model_validator

from service.contract.types import Name, SpecModel

if TYPE_CHECKING:
    from service.contract.spec import JobSpec

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

# What computes each weight by itself, so that a part of it is enough.
_OPTIMIZERS: Final = ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop")


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
        True,
        description="Free a block's gathered weights after its forward pass and gather them again "
        "for the backward pass; false takes more memory and sends less.",
    )
    auto_wrap_policy: Literal["transformer_based_wrap", "size_based_wrap", "no_wrap"] = Field(
        "transformer_based_wrap",
        description="What is gathered at once: each block, each module of `min_num_params` "
        "weights, or the whole model.",
    )
    transformer_layer_cls_to_wrap: Annotated[list[Name], Field(min_length=1)] | None = Field(
        None, description="Classes of the blocks; default: what the model's type names."
    )
    min_num_params: int | None = Field(
        None, ge=1, description="With `size_based_wrap`; default: 100,000,000."
    )
    cpu_offload: bool = Field(
        False, description="Keep weights, gradients and optimizer state on the CPU between uses."
    )
    mixed_precision_policy: MixedPrecisionPolicySpec | None = Field(
        None,
        description=f"`{{param_dtype: …, reduce_dtype: …}}`, `float32` or `bfloat16`; {_ON_GPUS}.",
    )
    sync_each_batch: bool = Field(
        False,
        description="Sum gradients up over the processes after each part of an accumulated batch: "
        "less memory, more is sent.",
    )

    @model_validator(mode="before")
    @classmethod
    def _has_nothing_refused(cls, value: Any) -> Any:
        names = sorted(REFUSED_FSDP.keys() & value.keys()) if isinstance(value, dict) else []
        if names:
            raise ValueError("; ".join(f"`{n}` is refused: {REFUSED_FSDP[n]}" for n in names))
        return value

    @model_validator(mode="after")
    def _policy_has_its_options(self) -> "FSDPSpec":
        policy = self.auto_wrap_policy
        if self.min_num_params is not None and policy != "size_based_wrap":
            raise ValueError("`min_num_params` needs `auto_wrap_policy: size_based_wrap`")
        if self.transformer_layer_cls_to_wrap and policy != "transformer_based_wrap":
            raise ValueError(
                "`transformer_layer_cls_to_wrap` needs `auto_wrap_policy: transformer_based_wrap`"
            )
        return self

    @property
    def least_params(self) -> int:
        return self.min_num_params or 100_000_000


def contradictions(job: "JobSpec") -> Iterator[str]:
    """What `fsdp` does not go with in the rest of the job, a sentence each."""
    options, training = job.resources.chosen_strategy, job.training
    if not isinstance(options, FSDPSpec):
        return
    if training.optim not in _OPTIMIZERS:
        yield (
            f"`training.optim: {training.optim}` looks at whole weights, and `fsdp` splits them: "
            f"use one of {', '.join(f'`{name}`' for name in _OPTIMIZERS)}"
        )
    if training.fp16:
        yield "`training.fp16` scales the loss by what whole gradients show: with `fsdp` use `bf16`"
    if training.compiles:
        yield "`training.torch_compile` compiles a model whose weights are whole: not with `fsdp`"
    for name in ("bf16_full_eval", "fp16_full_eval"):
        if getattr(training, name):
            yield f"`training.{name}` cannot change the dtype of weights that `fsdp` has split"
    if getattr(job.peft, "quantization", None) is not None:
        yield "`peft.quantization` packs weights so that `fsdp` cannot split them: use `ddp`"
    if options.cpu_offload and (training.use_cpu or not job.resources.gpus):
        yield "`resources.strategy.cpu_offload` is for GPUs: on a CPU the weights are there already"
