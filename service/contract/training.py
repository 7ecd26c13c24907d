"""TrainingSpec: names, defaults and meanings of `transformers.TrainingArguments` (5.x).

A new option is one field here and its use in `worker/training`; a test walks the installed
dataclass and compares every name and default.
"""

from collections.abc import Iterator
from typing import Any, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

IntervalStrategy = Literal["no", "steps", "epoch"]
SaveStrategy = Literal["no", "steps", "epoch", "best"]
Optimizer = Literal["adamw_torch", "adamw_torch_fused", "adafactor"]
Scheduler = Literal["linear", "cosine", "constant", "constant_with_warmup"]

# Names that older releases used and people still write → today's name.
ALIASES: Final[dict[str, str]] = {
    "evaluation_strategy": "eval_strategy",
    "warmup_ratio": "warmup_steps",
    "per_gpu_train_batch_size": "per_device_train_batch_size",
    "per_gpu_eval_batch_size": "per_device_eval_batch_size",
    "train_batch_size": "per_device_train_batch_size",
    "eval_batch_size": "per_device_eval_batch_size",
    "no_cuda": "use_cpu",
}

# Options of TrainingArguments that live elsewhere in our job spec.
ELSEWHERE: Final[dict[str, str]] = {
    "output_dir": "the service keeps each job in its own workspace; download it from /artifacts",
    "push_to_hub": "give the job's `hub` section instead",
    "hub_model_id": "use `hub.model_id`",
    "hub_private_repo": "use `hub.private`",
    "hub_revision": "use `hub.revision`",
    "hub_token": "the token is the operator's setting FINETUNE_HUB_TOKEN, never part of a spec",
    "report_to": "every job reports to MLflow; see `tracking`",
    "run_name": "use `tracking.run_name`",
    "do_train": "every job trains; leave it out",
    "do_eval": "set `eval_strategy`, and give `dataset.validation`",
    "do_predict": "give `dataset.test`",
    "resume_from_checkpoint": "a job resumes from its own newest checkpoint by itself",
}


class TrainingSpec(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True)

    # Duration and batches
    num_train_epochs: float = Field(
        3.0, gt=0, description="Passes over the data; may be a fraction."
    )
    max_steps: int = Field(
        -1, ge=-1, description="Optimizer steps in all; overrides num_train_epochs when above 0."
    )
    per_device_train_batch_size: int = Field(8, ge=1)
    per_device_eval_batch_size: int = Field(8, ge=1)
    gradient_accumulation_steps: int = Field(
        1,
        ge=1,
        description="Batches per optimizer step; the loss is that of the whole large batch.",
    )

    # Optimizer
    optim: Optimizer = Field("adamw_torch_fused")
    learning_rate: float = Field(5e-5, ge=0, allow_inf_nan=False)
    weight_decay: float = Field(
        0.0,
        ge=0,
        allow_inf_nan=False,
        description="Not applied to biases and normalisation weights.",
    )
    adam_beta1: float = Field(0.9, ge=0, lt=1)
    adam_beta2: float = Field(0.999, ge=0, lt=1)
    adam_epsilon: float = Field(1e-8, gt=0, allow_inf_nan=False)
    max_grad_norm: float = Field(
        1.0, ge=0, allow_inf_nan=False, description="0 turns clipping off."
    )

    # Schedule
    lr_scheduler_type: Scheduler = Field("linear")
    warmup_steps: float = Field(
        0, ge=0, allow_inf_nan=False, description="Steps; below 1 a ratio of all steps."
    )

    # Precision and device
    bf16: bool = Field(False, description="bfloat16 autocast; weights and optimizer stay fp32.")
    fp16: bool = Field(False, description="float16 autocast with loss scaling; needs a GPU.")
    use_cpu: bool = False

    # Reproducibility
    seed: int = Field(42, ge=0, lt=2**32)
    data_seed: int | None = Field(
        None, ge=0, lt=2**32, description="Order of examples; default: seed."
    )

    # Logging, evaluation, checkpoints
    logging_strategy: IntervalStrategy = "steps"
    logging_steps: float = Field(500, gt=0, description="Steps; below 1 a ratio of all steps.")
    logging_first_step: bool = False
    eval_strategy: IntervalStrategy = "no"
    eval_steps: float | None = Field(
        None, gt=0, description="Steps, below 1 a ratio of all steps; default: logging_steps."
    )
    save_strategy: SaveStrategy = "steps"
    save_steps: float = Field(500, gt=0, description="Steps; below 1 a ratio of all steps.")
    save_total_limit: int | None = Field(
        None, ge=1, description="Checkpoints to keep; the best and the newest always stay."
    )
    load_best_model_at_end: bool = False
    metric_for_best_model: str | None = Field(
        None,
        description="A metric of the evaluation, `eval_` may be left out; default: loss.",
    )
    greater_is_better: bool | None = Field(
        None, description="Default: False if the metric's name ends in `loss`, else True."
    )

    @model_validator(mode="before")
    @classmethod
    def _accept_older_names(cls, data: Any) -> Any:
        return _rename_aliases(data) if isinstance(data, dict) else data

    @model_validator(mode="after")
    def _check_combinations(self) -> "TrainingSpec":
        problems = list(_combination_problems(self))
        if problems:
            raise ValueError("; ".join(problems))
        return self


def _rename_aliases(data: dict[str, Any]) -> dict[str, Any]:
    renamed = dict(data)
    if renamed.pop("adafactor", False):
        renamed.setdefault("optim", "adafactor")
    for old, new in ALIASES.items():
        if old in renamed:
            value = renamed.pop(old)
            if new in renamed and renamed[new] != value:
                raise ValueError(f"`{old}` is an older name of `{new}`: give only one of them")
            renamed[new] = value
    return renamed


def _combination_problems(spec: TrainingSpec) -> Iterator[str]:
    for name in ("logging_steps", "eval_steps", "save_steps"):
        steps: float | None = getattr(spec, name)
        if steps is not None and steps > 1 and steps != int(steps):
            yield f"`{name}` must be whole when it is above 1, and is {steps}"
    if spec.bf16 and spec.fp16:
        yield "`bf16` and `fp16` exclude each other: give one of them"
    if spec.fp16 and spec.use_cpu:
        yield "`fp16` needs a GPU: use `bf16` on a CPU"
    if spec.load_best_model_at_end or spec.save_strategy == "best":
        yield from _best_model_problems(spec)


def _best_model_problems(spec: TrainingSpec) -> Iterator[str]:
    if spec.eval_strategy == "no":
        yield "the best model is chosen by evaluations: set `eval_strategy` to `steps` or `epoch`"
    elif spec.save_strategy == "no":
        yield "`load_best_model_at_end` needs checkpoints: set `save_strategy`"
    elif spec.save_strategy != "best" and spec.save_strategy != spec.eval_strategy:
        yield (
            "`load_best_model_at_end` needs a checkpoint for each evaluation: "
            f"`save_strategy` is `{spec.save_strategy}` but "
            f"`eval_strategy` is `{spec.eval_strategy}`"
        )
    elif spec.save_strategy == "steps":
        eval_steps = spec.eval_steps if spec.eval_steps is not None else spec.logging_steps
        if (eval_steps < 1) != (spec.save_steps < 1) or not _is_multiple(
            spec.save_steps, eval_steps
        ):
            yield "`load_best_model_at_end` needs `save_steps` to be a multiple of `eval_steps`"


def _is_multiple(value: float, unit: float) -> bool:
    ratio = value / unit
    return abs(ratio - round(ratio)) < 1e-9 and round(ratio) >= 1
