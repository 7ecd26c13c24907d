"""`resources.strategy` with `type: deepspeed`: optimizer state, and gradients, sharded (ZeRO).

Names and meanings are those of Accelerate's DeepSpeedPlugin and of the section `zero_optimization`
of DeepSpeed's configuration.
"""

from typing import Any, Final, Literal

from pydantic import Field, ValidationInfo, model_validator

from service.contract.fields.bounds import MOST_ROWS
from service.contract.fields.section import SpecModel, refused_names

_STAGE_3: Final = "it belongs to stage 3, which is refused"
_PRECISION: Final = "it is `training.precision`: autocast over float32 weights, for all strategies"
_BATCHES: Final = "it follows from the batch sizes in `training`"
_NVME: Final = "nothing is kept on disks: use `cpu`"

# Options of the plugin and of DeepSpeed's configuration that are refused, and why.
REFUSED_DEEPSPEED: Final[dict[str, str]] = {
    "bf16": _PRECISION,
    "enable_msamp": _PRECISION,
    "fp16": _PRECISION,
    "gradient_accumulation_steps": "it is `training.gradient_accumulation_steps`",
    "gradient_clipping": "it is `training.max_grad_norm`",
    "hf_ds_config": "its sections are options of the job: none is read from a file",
    "is_train_batch_min": _BATCHES,
    "msamp_opt_level": _PRECISION,
    "offload_optimizer_nvme_path": _NVME,
    "offload_param_device": _STAGE_3,
    "offload_param_nvme_path": _STAGE_3,
    "optimizer": "it is `training.optim`",
    "scheduler": "it is `training.lr_scheduler_type`",
    "train_batch_size": _BATCHES,
    "train_micro_batch_size_per_gpu": "it is `training.per_device_train_batch_size`",
    "transformer_moe_cls_names": _STAGE_3,
    "zero3_init_flag": _STAGE_3,
    "zero3_save_16bit_model": _STAGE_3,
}


class DeepSpeedSpec(SpecModel):
    """Each process has all weights and updates its shard of them."""

    type: Literal["deepspeed"] = Field("deepspeed", description="DeepSpeed's ZeRO.")
    timeout: int = Field(
        1800, ge=1, le=7 * 86400, description="Seconds that a process waits for the others."
    )
    zero_stage: Literal[1, 2] = Field(
        2, description="1: shards the optimizer state; 2: gradients as well."
    )
    offload_optimizer_device: Literal["none", "cpu"] = Field(
        "none", description="`cpu`: keep the optimizer state, and update the weights, on the CPU."
    )
    reduce_bucket_size: int = Field(
        500_000_000, ge=1, le=MOST_ROWS, description="Gradient elements that are reduced at once."
    )
    allgather_bucket_size: int = Field(
        500_000_000,
        ge=2,
        le=MOST_ROWS,
        multiple_of=2,
        description="Weight elements that are gathered at once.",
    )
    overlap_comm: bool = Field(
        default=False, description="Send gradients during the backward pass; takes more memory."
    )
    contiguous_gradients: bool = Field(
        default=True, description="Copy gradients into one buffer as they are made."
    )
    reduce_scatter: bool = Field(
        default=True, description="Each process receives only the sums of its shard."
    )
    round_robin_gradients: bool = Field(
        default=False, description="With `offload_optimizer_device: cpu`: copy in parallel."
    )

    @model_validator(mode="before")
    @classmethod
    def _has_nothing_refused(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, dict):
            return value
        refused = refused_names(value, REFUSED_DEEPSPEED)
        stage = value.get("zero_stage")
        if stage in (0, 3):  # no set: it may be anything, hashable or not
            why = "it is `ddp`" if stage == 0 else "`fsdp` splits weights, too"
            refused.append(("zero_stage", f"`zero_stage: {stage}` is refused: {why}; use that"))
        if value.get("offload_optimizer_device") == "nvme":
            name = "offload_optimizer_device"
            refused.append((name, f"`{name}: nvme` is refused: {_NVME}"))
        return cls.without_refused(value, info, refused)
