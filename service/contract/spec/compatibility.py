"""Rules between the sections of a spec: each function takes the sections that it compares, and
yields one sentence for each contradiction, with the fields it names in backticks.

A function reads as few fields as its rule needs: a rule that reads a faulty field is undecided.
"""

from collections.abc import Iterator
from typing import Final, Literal

from service.contract.spec.dataset import MAX_BAD_FRACTION, DatasetSpec
from service.contract.spec.fsdp import FSDPSpec
from service.contract.spec.hub import HubSpec
from service.contract.spec.model import ModelSpec
from service.contract.spec.modes import Mode
from service.contract.spec.peft import (
    TASK_TYPES,
    LoraSpec,
    PeftSpec,
    PrefixTuningSpec,
    PromptTuningSpec,
    QuantizationSpec,
)
from service.contract.spec.resources import DDPSpec, ResourcesSpec
from service.contract.spec.tracking import TrackingSpec
from service.contract.spec.training import TrainingSpec
from service.contract.tasks import metrics
from service.contract.tasks.parameters import (
    QuestionAnsweringSpec,
    TaskSpec,
    TextClassificationSpec,
)
from service.contract.tasks.preference import PreferenceSpec

Sentences = Iterator[str]

# Strategy → why not every optimizer will do, and those that update each weight independently, so
# that a shard is enough. DeepSpeed recreates Adagrad and loses its options.
_ON_SHARDS: Final = {
    "fsdp": (
        "needs whole weights, and `fsdp` shards them",
        ("adamw_torch", "adamw_torch_fused", "sgd", "adagrad", "rmsprop"),
    ),
    "deepspeed": (
        "cannot update the shards of `deepspeed`",
        ("adamw_torch", "adamw_torch_fused", "sgd", "rmsprop"),
    ),
}

_PAGED: Final = "paged_"
_NOT_PAGED: Final = {"adamw_32bit": "adamw_torch", "ademamix_32bit": "ademamix"}
"""Where the optimizer is not called as the paged one without its prefix."""

# Tasks whose outputs belong to tokens of the text, one by one.
_ALIGNED: Final = frozenset({"TOKEN_CLS", "QUESTION_ANS"})


# ---- mode ---------------------------------------------------------------------------------------


def mode_has_its_rows(mode: Mode, dataset: DatasetSpec) -> Sentences:
    if mode == "train":
        if dataset.train is None:
            yield "`dataset.train` is required: it holds the rows to train on"
    elif mode == "predict":
        if dataset.test is None:
            yield "`dataset.test` is required: it holds the rows to make predictions for"
    elif dataset.validation_split_percentage is not None:
        if dataset.train is None:
            yield "`dataset.validation_split_percentage` is a share of `dataset.train`: give both"
    elif dataset.validation is None and dataset.test is None:
        yield "`dataset.validation` is required, or `dataset.test`: they hold the rows to score"


def only_trainings_push(mode: Mode, hub: HubSpec | None) -> Sentences:
    if mode != "train" and hub is not None:
        yield f"`hub` pushes a trained model, and `{mode}` trains none"


def always_pushed_while_training(hub: HubSpec | None) -> Sentences:
    if hub is not None and hub.always_push and not hub.pushes_while_training:
        yield (
            "`hub.always_push` is for pushes while training, and `hub.strategy: end` makes none: "
            "give another `hub.strategy`, such as `every_save`"
        )


def only_trainings_register(mode: Mode, tracking: TrackingSpec) -> Sentences:
    if mode != "train" and tracking.register_as is not None:
        yield f"`tracking.register_as` registers a trained model, and `{mode}` trains none"


def only_trainings_have_steps(mode: Mode, tracking: TrackingSpec) -> Sentences:
    if mode != "train" and tracking.tensorboard:
        yield (
            "`tracking.tensorboard` writes the metrics of training steps, and "
            f"`{mode}` has no training steps"
        )


def only_trainings_resume(mode: Mode, training: TrainingSpec) -> Sentences:
    if mode != "train" and training.resume_from is not None:
        yield f"`training.resume_from` continues a training, and `{mode}` does not train"


def only_trainings_make_adapters(mode: Mode, peft: PeftSpec | None) -> Sentences:
    if mode != "train" and peft is not None:
        yield f"`peft` describes an adapter to train, and `{mode}` does not train"


def only_trainings_start_from_scratch(mode: Mode, model: ModelSpec) -> Sentences:
    if mode != "train" and model.config is not None:
        yield (
            "`model.config` creates a model with random weights: give `model.name_or_path`, a "
            "model that was trained for the task"
        )


# ---- data ---------------------------------------------------------------------------------------


def evaluations_have_rows(mode: Mode, training: TrainingSpec, dataset: DatasetSpec) -> Sentences:
    if mode != "train" or training.eval_strategy == "no":
        return
    if dataset.validation is None and dataset.validation_split_percentage is None:
        yield (
            f"`training.eval_strategy` is `{training.eval_strategy}` but "
            "`dataset.validation` is not given"
        )


def validation_rows_have_one_source(dataset: DatasetSpec) -> Sentences:
    if dataset.validation is not None and dataset.validation_split_percentage is not None:
        yield (
            "`dataset.validation_split_percentage` is for data without `dataset.validation`: "
            "give one of them"
        )


def only_skipping_has_a_limit(dataset: DatasetSpec) -> Sentences:
    if dataset.on_bad_row == "fail" and dataset.max_bad_fraction != MAX_BAD_FRACTION:
        yield "`dataset.max_bad_fraction` needs `dataset.on_bad_row: skip`"


def best_model_has_one_metric(
    mode: Mode, training: TrainingSpec, dataset: DatasetSpec
) -> Sentences:
    several = mode == "train" and isinstance(dataset.validation, dict)
    if several and training.chooses_by_metric and training.metric_for_best_model is None:
        yield (
            "the best model is chosen by `training.metric_for_best_model`: with several sets "
            "in `dataset.validation` name a metric of one of them, such as `<name>_loss`"
        )


def best_metric_is_reported(
    mode: Mode, training: TrainingSpec, dataset: DatasetSpec, task: TaskSpec
) -> Sentences:
    metric = training.metric_for_best_model
    if mode != "train" or metric is None or training.eval_strategy == "no":
        return
    sets = tuple(dataset.validation) if isinstance(dataset.validation, dict) else ()
    sentences = list(metrics.unreported(task, metric, sets))
    if not sentences and training.greater_is_better is None:
        sentences.extend(metrics.undirected(task, metric))
    yield from sentences


# ---- task ---------------------------------------------------------------------------------------


def columns_have_one_name(task: TaskSpec, dataset: DatasetSpec) -> Sentences:
    for column, theirs in task.named_columns().items():
        if dataset.columns.get(column, theirs) != theirs:
            yield (
                f"`task.{column}_column` is {theirs!r} but `dataset.columns.{column}` is "
                f"{dataset.columns[column]!r}: give one of them"
            )


def label_columns_replace_the_label(task: TaskSpec, dataset: DatasetSpec) -> Sentences:
    if not isinstance(task, TextClassificationSpec) or task.label_columns is None:
        return
    if "label" in dataset.columns:
        yield (
            "`task.label_columns` takes the place of the column `label`: remove it from "
            "`dataset.columns`"
        )
    for column in ("text", "text_pair"):
        theirs = dataset.columns.get(column, column)
        if theirs in task.label_columns:
            yield f"`task.label_columns` names {theirs!r}, the column of `{column}`"


def beam_search_is_of_xlnet(task: TaskSpec, model: ModelSpec) -> Sentences:
    """Of a model that is named, the worker reads the type from its configuration."""
    if not isinstance(task, QuestionAnsweringSpec) or task.head != "beam-search":
        return
    if model.config is not None and model.config.model_type != "xlnet":
        yield (
            "`task.head: beam-search` needs a model of type `xlnet`, and `model.config.model_type` "
            f"is `{model.config.model_type}`: use `span`"
        )


def smoothed_labels_exist(mode: Mode, training: TrainingSpec, task: TaskSpec) -> Sentences:
    if mode != "train" or not training.label_smoothing_factor:
        return
    if task.type == "question-answering":
        yield (
            "`training.label_smoothing_factor` smooths class labels, and a `question-answering` "
            "model predicts two positions instead"
        )
    elif task.type == "preference":
        yield (
            "`training.label_smoothing_factor` smooths class labels: for a share of wrong "
            "preferences give `task.label_smoothing`"
        )
    elif task.type == "reward":
        yield "`training.label_smoothing_factor` smooths class labels, and a `reward` has none"


def references_are_untrained(mode: Mode, task: TaskSpec) -> Sentences:
    if mode == "evaluate" and isinstance(task, PreferenceSpec) and task.needs_reference():
        yield (
            "`mode: evaluate` has the finished model only, and "
            f"`task.loss_type: {task.loss_type}` compares it with the model before training: set "
            "`task.reference: none`, or `loss_type: sigmoid` with it, to evaluate the model alone"
        )


def threshold_has_one_validation_set(mode: Mode, task: TaskSpec, dataset: DatasetSpec) -> Sentences:
    if mode != "train" or not task.uses_validation_threshold():
        return
    option = "`task.null_score_diff_threshold: auto` finds the threshold on the validation set"
    if isinstance(dataset.validation, dict):
        yield f"{option}: give a number, or one set in `dataset.validation`"
    elif dataset.validation is None and dataset.validation_split_percentage is None:
        yield f"{option}: give `dataset.validation`"


# ---- devices ------------------------------------------------------------------------------------


def cpu_or_gpus(training: TrainingSpec, resources: ResourcesSpec) -> Sentences:
    if training.use_cpu and resources.gpus:
        yield "`training.use_cpu` contradicts `resources.gpus`: give one of them"


def gpu_options_have_a_gpu(
    mode: Mode, training: TrainingSpec, resources: ResourcesSpec
) -> Sentences:
    if training.use_cpu or resources.gpus == 0:
        for option, instead in of_gpus_alone(mode, training):
            yield f"`{option}` needs a GPU: on a CPU {instead}"


def of_gpus_alone(mode: Mode, training: TrainingSpec) -> Iterator[tuple[str, str]]:
    """Options with their values that only a GPU has → what to do without one."""
    if training.fp16:
        yield "training.precision: fp16", "use `bf16`"
    if training.fp16_full_eval:
        yield "training.fp16_full_eval: true", "use `bf16_full_eval`"
    if training.tf32:
        yield "training.tf32: true", "leave it out"
    if training.compiles and training.torch_compile_backend == "cudagraphs":
        yield "training.torch_compile_backend: cudagraphs", "use `inductor`"
    if mode == "train" and training.optim.startswith(_PAGED):
        name = training.optim.removeprefix(_PAGED)
        yield f"training.optim: {training.optim}", f"use `{_NOT_PAGED.get(name, name)}`"


def batches_shrink_in_one_process(
    mode: Mode, training: TrainingSpec, resources: ResourcesSpec
) -> Sentences:
    if mode == "train" and training.auto_find_batch_size and resources.processes > 1:
        yield (
            "`training.on_oom: halve_batch` (`auto_find_batch_size`) works with one process only: "
            "with several, lower `per_device_train_batch_size` instead"
        )


# ---- peft ---------------------------------------------------------------------------------------


def adapters_need_trained_weights(peft: PeftSpec | None, model: ModelSpec) -> Sentences:
    if peft is not None and model.config is not None:
        yield (
            "`peft` adapts a trained model, and `model.config` creates one from scratch: remove "
            "one of them"
        )


def prompts_fit_the_task(peft: PeftSpec | None, task: TaskSpec) -> Sentences:
    if not isinstance(peft, PromptTuningSpec | PrefixTuningSpec):
        return
    variant = task.variant()
    if variant not in TASK_TYPES:
        yield f"`peft` by `{peft.method}` does not exist for `{variant}`: use `lora` or `ia3`"
    elif isinstance(peft, PromptTuningSpec) and TASK_TYPES[variant] in _ALIGNED:
        yield (
            "`peft` by `prompt-tuning` puts virtual tokens before the text, and the outputs of a "
            f"`{variant}` model would no longer match its tokens: use `prefix-tuning` or `lora`"
        )
    elif isinstance(peft, PromptTuningSpec) and variant == "reward":
        yield (
            "`peft` by `prompt-tuning` puts virtual tokens before the text, and the last token of "
            "an answer, where the reward is read, would no longer be found: use `prefix-tuning` or "
            "`lora`"
        )


def prompts_need_padding(peft: PeftSpec | None, training: TrainingSpec) -> Sentences:
    if isinstance(peft, PromptTuningSpec | PrefixTuningSpec) and training.padding_free:
        yield f"`training.padding_free` excludes `peft` by `{peft.method}`: use `lora` or `ia3`"


def prompts_reach_every_document(peft: PeftSpec | None, task: TaskSpec) -> Sentences:
    if isinstance(peft, PromptTuningSpec | PrefixTuningSpec) and getattr(
        task, "separate_documents", False
    ):
        yield (
            "`task.separate_documents` would separate the documents from the virtual tokens of "
            f"`peft` by `{peft.method}`: use `lora` or `ia3`"
        )


def prefixes_need_the_cache(peft: PeftSpec | None, training: TrainingSpec) -> Sentences:
    if isinstance(peft, PrefixTuningSpec) and training.activation_checkpointing:
        yield (
            "`training.activation_checkpointing` excludes `peft` by `prefix-tuning`: the prefix is "
            "passed through the cache, which checkpointing turns off"
        )


def quantized_weights_keep_their_dtype(peft: PeftSpec | None, training: TrainingSpec) -> Sentences:
    if quantization_of(peft) is not None:
        for name in ("bf16_full_eval", "fp16_full_eval"):
            if getattr(training, name):
                yield f"`training.{name}` cannot change the dtype of `peft.quantization`'s weights"


def four_bits_need_a_gpu(
    peft: PeftSpec | None, training: TrainingSpec, resources: ResourcesSpec
) -> Sentences:
    if has_four_bits(peft) and (training.use_cpu or resources.gpus == 0):
        yield ("`peft.quantization.bits` is 4, which needs a GPU: on a CPU use 8 bits")


def has_four_bits(peft: PeftSpec | None) -> bool:
    quantization = quantization_of(peft)
    return quantization is not None and quantization.bits == 4


def quantization_of(peft: PeftSpec | None) -> QuantizationSpec | None:
    return peft.quantization if isinstance(peft, LoraSpec) else None


# ---- strategies that shard ----------------------------------------------------------------------


def shards_have_their_optimizers(resources: ResourcesSpec, training: TrainingSpec) -> Sentences:
    strategy = _sharding(resources)
    if strategy is None:
        return
    why, optimizers = _ON_SHARDS[strategy]
    if training.optim not in optimizers:
        yield (
            f"`training.optim: {training.optim}` {why}: "
            f"use one of {', '.join(f'`{name}`' for name in optimizers)}"
        )


def shards_scale_no_loss(resources: ResourcesSpec, training: TrainingSpec) -> Sentences:
    strategy = _sharding(resources)
    if strategy is not None and training.fp16:
        yield (
            f"`training.fp16` needs whole gradients to scale the loss: with `{strategy}` use `bf16`"
        )


def shards_compile_nothing(resources: ResourcesSpec, training: TrainingSpec) -> Sentences:
    strategy = _sharding(resources)
    if strategy is not None and training.compiles:
        yield f"`training.torch_compile` does not work with `{strategy}`: use `ddp`"


def shards_keep_their_dtype(resources: ResourcesSpec, training: TrainingSpec) -> Sentences:
    strategy = _sharding(resources)
    if strategy is None:
        return
    holds = "`fsdp` has sharded" if strategy == "fsdp" else "`deepspeed` updates"
    for name in ("bf16_full_eval", "fp16_full_eval"):
        if getattr(training, name):
            yield f"`training.{name}` cannot change the dtype of weights that {holds}"


def deepspeed_needs_float32(resources: ResourcesSpec, model: ModelSpec) -> Sentences:
    if _sharding(resources) == "deepspeed" and model.dtype not in {"auto", "float32"}:
        yield f"`model.dtype: {model.dtype}`: `deepspeed` needs `float32` weights"


def shards_are_not_quantized(resources: ResourcesSpec, peft: PeftSpec | None) -> Sentences:
    strategy = _sharding(resources)
    if strategy is not None and quantization_of(peft) is not None:
        yield f"`peft.quantization` packs weights so that `{strategy}` cannot shard them: use `ddp`"


def fsdp_offloads_from_gpus(resources: ResourcesSpec, training: TrainingSpec) -> Sentences:
    options = resources.chosen_strategy
    if not isinstance(options, FSDPSpec) or not options.cpu_offload:
        return
    if training.use_cpu or not resources.gpus:
        yield (
            "`resources.strategy.cpu_offload` is for GPUs: on a CPU the weights are on the CPU "
            "anyway"
        )


def _sharding(resources: ResourcesSpec) -> Literal["fsdp", "deepspeed"] | None:
    strategy = resources.chosen_strategy
    return None if isinstance(strategy, DDPSpec) else strategy.type
