"""The options of `training`, as in `transformers.TrainingArguments` (5.x).

A new option is one field here and its use in `worker/training`; a test walks the installed
dataclass and compares every name and default.
"""

import json
from typing import Annotated, Any, Final, Literal

from pydantic import BeforeValidator, Field, StringConstraints

from service.contract.fields.bounds import HIGHEST_LEARNING_RATE, LARGEST, MOST_EXAMPLES, MOST_STEPS
from service.contract.fields.section import SpecModel
from service.contract.fields.types import (
    MOST_ENTRIES,
    CheckpointChoice,
    JobId,
    ShortEnough,
    refusing,
)
from service.contract.training_arguments.choices import BY_METRIC, Optimizer, Sampling, Schedule
from service.contract.training_arguments.refused_options import REFUSED_OPTIMIZERS, REFUSED_SAMPLING

IntervalStrategy = Literal["no", "steps", "epoch"]
SaveStrategy = Literal["no", "steps", "epoch", "best"]


def _from_json(value: Any) -> Any:
    """TrainingArguments takes such options as JSON text, too."""
    if isinstance(value, str) and value.startswith("{"):
        try:
            parsed = json.loads(value)
            # JSON can escape half of a surrogate pair, but no text can store it.
            json.dumps(parsed, ensure_ascii=False).encode("utf-8")
        except RecursionError:
            raise ValueError("is not a valid JSON object: it is nested too deeply") from None
        except ValueError as error:
            raise ValueError(f"is not a valid JSON object: {error}") from error
        return parsed
    return value


_ArgumentName = Annotated[str, StringConstraints(max_length=200)]
_Argument = (
    bool
    | Annotated[int, Field(ge=-LARGEST, le=LARGEST)]
    | Annotated[float, Field(ge=-LARGEST, le=LARGEST)]
    | Annotated[str, StringConstraints(max_length=200)]
    | None
)
Arguments = Annotated[
    Annotated[dict[_ArgumentName, _Argument], Field(max_length=MOST_ENTRIES)] | None,
    ShortEnough,
    BeforeValidator(_from_json),
]


class ResumeFromSpec(SpecModel):
    """A checkpoint of another job, restored whole."""

    job: JobId = Field(
        examples=["job-0199a0b1c2d37e4f85a6b7c8d9e0f1a2"],
        description="A job with the same task, model, data and optimizer.",
    )
    checkpoint: CheckpointChoice = Field(
        "last", description="`best`, `last` or the step of a checkpoint."
    )


# What TrainingArguments has; here on CPUs, where larger ones gain nothing.
DEFAULT_EVAL_BATCH_SIZE: Final = 8

# Options that TrainingArguments does not have.
ADDITIONS: Final[dict[str, str]] = {
    "early_stopping_patience": "EarlyStoppingCallback's argument, here an option; default: off",
    "padding_free": "as in TRL's SFTConfig, here for every task and automatic",
    "compile_if_faster": "the Trainer compiles only on request; here it is measured on a GPU",
    "precision": "`bf16` and `fp16` by one name, with a choice of its own",
    "early_stopping_threshold": "EarlyStoppingCallback's argument, here an option",
    "on_oom": "another name of `auto_find_batch_size`, to match `on_non_finite`",
    "on_non_finite": "Trainer continues with unusable weights; default: fail",
    "non_finite_rollbacks": "of `on_non_finite: rollback`",
    "rollback_learning_rate_factor": "of `on_non_finite: rollback`",
    "async_save": "by the name that torch's distributed checkpoints have for it",
    "resume_from": "`resume_from_checkpoint` is a path, and this a checkpoint of another job",
}


class TrainingOptions(SpecModel):
    """The options as they are named today, without the rules between them."""

    # Duration and batches
    num_train_epochs: float = Field(
        3.0, gt=0, le=MOST_STEPS, description="Passes over the data; may be a fraction."
    )
    max_steps: int = Field(
        -1,
        ge=-1,
        le=MOST_STEPS,
        description="Optimizer steps in all; overrides num_train_epochs when above 0.",
    )
    per_device_train_batch_size: int = Field(
        8, ge=1, le=MOST_EXAMPLES, description="Examples of one forward pass on each device."
    )
    per_device_eval_batch_size: int | None = Field(
        None,
        ge=1,
        le=MOST_EXAMPLES,
        description="The same while evaluating. null: 8; on a GPU four times as many as "
        "`per_device_train_batch_size`, if those are more (not with `fsdp`, whose evaluations "
        "cannot take smaller batches when memory runs out).",
    )
    gradient_accumulation_steps: int = Field(
        1,
        ge=1,
        le=MOST_EXAMPLES,
        description="Batches per optimizer step; the loss is that of the whole large batch.",
    )

    auto_find_batch_size: bool = Field(
        default=False,
        description="When memory runs out: smaller batches and more accumulation, so that the "
        "large batch stays the same. An evaluation computes a batch that does not fit in parts, "
        "whatever this is.",
    )
    on_oom: Literal["fail", "halve_batch"] = Field(
        "fail", description="`halve_batch` is `auto_find_batch_size` by another name."
    )

    # Optimizer
    optim: Annotated[Optimizer, refusing(REFUSED_OPTIMIZERS)] = Field(
        "adamw_torch_fused", description="See below."
    )
    optim_args: str | None = Field(
        None, max_length=1000, description="The optimizer's own: `momentum=0.9, nesterov=true`."
    )
    learning_rate: float = Field(
        5e-5, ge=0, le=HIGHEST_LEARNING_RATE, description="The highest one of the schedule."
    )
    weight_decay: float = Field(
        0.0,
        ge=0,
        le=LARGEST,
        description="Not applied to biases and normalisation weights.",
    )
    adam_beta1: float = Field(
        0.9, ge=0, lt=1, description="Of AdamW, AdEMAMix and Lion: decay of the mean."
    )
    adam_beta2: float = Field(0.999, ge=0, lt=1, description="Of the same: decay of the spread.")
    adam_epsilon: float = Field(1e-8, gt=0, le=LARGEST, description="Of AdamW and AdEMAMix.")
    max_grad_norm: float = Field(1.0, ge=0, le=LARGEST, description="0 turns clipping off.")

    # Schedule
    lr_scheduler_type: Schedule = Field("linear", description="See below.")
    lr_scheduler_kwargs: Arguments = Field(
        None, description='The schedule\'s own: `{"num_cycles": 2}`.'
    )
    warmup_steps: float = Field(
        0, ge=0, le=LARGEST, description="Steps; below 1 a ratio of all steps."
    )

    # Divergence
    on_non_finite: Literal["fail", "rollback"] = Field(
        "fail",
        description="When a loss, a gradient or a weight is not finite. `rollback`: back to the "
        "newest checkpoint (one is written before the first step, too) with a lower learning rate.",
    )
    non_finite_rollbacks: int = Field(
        3, ge=1, le=100, description="After this many in one job, the next one ends it."
    )
    rollback_learning_rate_factor: float = Field(
        0.5, gt=0, lt=1, description="What each of them multiplies the learning rates by."
    )

    # Regularisation
    label_smoothing_factor: float = Field(
        0.0, ge=0, lt=1, description="Of the training loss; evaluations report the plain loss."
    )
    neftune_noise_alpha: float | None = Field(
        None, ge=0, le=LARGEST, description="Noise on the embeddings while training."
    )

    # Order and loading of examples
    train_sampling_strategy: Annotated[Sampling, refusing(REFUSED_SAMPLING)] = Field(
        "random", description="Order of examples in an epoch."
    )
    dataloader_drop_last: bool = Field(
        default=False, description="Leave out an epoch's last batch when it is smaller."
    )
    dataloader_num_workers: int | None = Field(
        None,
        ge=0,
        le=128,
        description="Processes that make batches ahead; 0: the training itself. null: 2 for each "
        "process that trains on a GPU, else 0.",
    )
    dataloader_pin_memory: bool = Field(default=True, description="Without a GPU it does nothing.")
    dataloader_persistent_workers: bool = Field(
        default=False, description="Keep those processes from one epoch to the next."
    )
    dataloader_prefetch_factor: int | None = Field(
        None, ge=1, le=10_000, description="Batches that each of them makes ahead; default: 2."
    )

    padding_free: bool | None = Field(
        None,
        description="Compute batches without padding, and heads of masked language models at the "
        "masked tokens alone. null: where that is found to give the same numbers; true: or end the "
        "job; false: nor are dropout and activations computed faster than transformers does.",
    )

    # Precision and device
    precision: Literal["auto", "fp32", "bf16", "fp16"] = Field(
        "auto",
        description="`auto`: with float32 weights bf16 on a GPU that computes in it, and on a CPU "
        "that is measured to be faster in it; on other GPUs (V100, T4) fp16, except for models "
        "that are known to exceed its range and with `fsdp` or `deepspeed`; else fp32. A training "
        "that is resumed keeps what it began with. `bf16: false` is fp32.",
    )
    bf16: bool = Field(
        default=False, description="bfloat16 autocast; weights and optimizer stay fp32."
    )
    fp16: bool = Field(
        default=False, description="float16 autocast with loss scaling; needs a GPU."
    )
    use_cpu: bool = Field(default=False, description="As `resources.gpus: 0`.")
    tf32: bool | None = Field(
        None, description="TF32 products of float32 on Ampere GPUs or newer; null: torch's default."
    )
    bf16_full_eval: bool = Field(
        default=False,
        description="The finished model's evaluation and predictions in pure bfloat16.",
    )
    fp16_full_eval: bool = Field(default=False, description="The same in float16.")
    activation_checkpointing: bool | None = Field(
        None, description="Compute activations again in the backward pass: less memory, slower."
    )
    activation_checkpointing_kwargs: Arguments = Field(
        None, description="Of torch.utils.checkpoint, for example `use_reentrant`."
    )
    torch_compile: bool = Field(
        default=False,
        description="Compile the model with torch.compile; on a CPU that is slower than without. "
        "Later jobs of the kind find what was compiled.",
    )
    torch_compile_backend: Literal["inductor", "cudagraphs", "aot_eager", "eager"] | None = Field(
        None, description="Implies torch_compile; default: inductor."
    )
    torch_compile_mode: (
        Literal["default", "reduce-overhead", "max-autotune", "max-autotune-no-cudagraphs"] | None
    ) = Field(None, description="Implies torch_compile.")
    compile_if_faster: bool = Field(
        default=True,
        description="On a GPU, without `torch_compile`: before a training of half an hour or more "
        "measure on its first batches whether compiled layers are faster, and use them if they "
        "are, and if they compute the same. `full_determinism` measures nothing.",
    )
    torch_empty_cache_steps: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="Return the GPU's unused memory after this many steps.",
    )

    # Reproducibility
    seed: int = Field(
        42, ge=0, lt=2**32, description="Of new weights, dropout, masks and the order of examples."
    )
    data_seed: int | None = Field(
        None, ge=0, lt=2**32, description="Order of examples; default: seed."
    )
    full_determinism: bool = Field(
        default=False,
        description="Deterministic kernels only; slower, and an error where there is none. On GPUs "
        "a training that is repeated or resumed gives the same bits only so, and only on the same "
        "GPU model with the same software (docs/gpu.md).",
    )

    # Logging, evaluation, checkpoints
    logging_strategy: IntervalStrategy = Field("steps", description="When the loss is reported.")
    logging_steps: float = Field(
        500, gt=0, le=LARGEST, description="Steps; below 1 a ratio of all steps."
    )
    logging_first_step: bool = Field(
        default=False, description="Report the first step's loss, too."
    )
    include_num_input_tokens_seen: Annotated[
        Literal["no", "all", "non_padding"],
        BeforeValidator(
            lambda value: ("all" if value else "no") if isinstance(value, bool) else value
        ),
    ] = Field("no", description="Log how many tokens were read; `true` is `all`.")
    eval_strategy: IntervalStrategy = Field(
        "no", description="When to evaluate, in addition to the start and the end."
    )
    eval_on_start: bool = Field(
        default=True,
        description="Evaluate before the first step, too: what training is compared with. A job "
        "without validation data does not.",
    )
    eval_delay: float = Field(
        0,
        ge=0,
        le=LARGEST,
        description="Steps or epochs, as eval_strategy counts, before the first evaluation.",
    )
    eval_steps: float | None = Field(
        None,
        gt=0,
        le=LARGEST,
        description="Steps, below 1 a ratio of all steps; default: logging_steps.",
    )
    save_strategy: SaveStrategy = Field(
        "steps",
        description="When a checkpoint is written; `best`: after the best evaluation so far, as "
        "`load_best_model_at_end` does with every strategy.",
    )
    save_steps: float = Field(
        500, gt=0, le=LARGEST, description="Steps; below 1 a ratio of all steps."
    )
    save_total_limit: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="Checkpoints to keep; the best and the newest always stay.",
    )
    resume_from: ResumeFromSpec | None = Field(
        None,
        description="`job` and `checkpoint` (`best`, `last` or a step; default: `last`): continue "
        "the training of another job, with its optimizer, its schedule and all else. See "
        "docs/checkpoints.md.",
    )
    async_save: bool = Field(
        default=True,
        description="Write checkpoints in the background, from a copy in RAM: of what "
        "trains, and of the optimizer's state. false: the training waits while they are written.",
    )
    load_best_model_at_end: bool = Field(
        default=False,
        description="The finished model is that of the best evaluation, not the last one. Each new "
        "best is saved when it occurs, whatever `save_strategy` and `save_steps` are.",
    )
    metric_for_best_model: str | None = Field(
        None,
        max_length=200,
        description="A metric of the evaluation, `eval_` may be left out; default: loss.",
    )
    greater_is_better: bool | None = Field(
        None,
        description="Default: the direction of the metric, as `GET /v1/tasks` lists it. Required "
        "for a metric without one, such as `gen_len`.",
    )
    early_stopping_patience: int | None = Field(
        None,
        ge=1,
        le=MOST_STEPS,
        description="Stop after this many evaluations in a row without improvement.",
    )
    early_stopping_threshold: float = Field(
        0.0, ge=0, le=LARGEST, description="What an improvement must exceed."
    )

    @property
    def eval_batch_size(self) -> int:
        """Examples of one forward pass on each device while evaluating."""
        return self.per_device_eval_batch_size or DEFAULT_EVAL_BATCH_SIZE

    @property
    def compiles(self) -> bool:
        """As in TrainingArguments, a back end or a mode implies it."""
        return self.torch_compile or bool(self.torch_compile_backend or self.torch_compile_mode)

    @property
    def saves_each_best(self) -> bool:
        """Whether a checkpoint is written after each new best evaluation, whatever is due."""
        return self.load_best_model_at_end or self.save_strategy == "best"

    @property
    def chooses_by_metric(self) -> bool:
        """Whether something depends on `metric_for_best_model`, which is then the loss unless
        given."""
        return (
            self.saves_each_best
            or self.early_stopping_patience is not None
            or self.lr_scheduler_type in BY_METRIC
        )
