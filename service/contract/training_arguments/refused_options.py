"""Options and values of `transformers.TrainingArguments` that `training` refuses, and why.

Kept apart from a misspelt name, so that the answer can say which of the two it is. A test walks
the installed dataclass: each of its names is a field of TrainingSpec, lives elsewhere in the spec
or is here; `docs/training-options.md` is made from the same tables.
"""

from typing import Final

_OWN_METRICS: Final = (
    "it shapes the input of a Python function `compute_metrics`; here each task computes its own "
    "metrics, batch by batch"
)
_TRACKIO: Final = "it belongs to the tracker Trackio; jobs report to MLflow, see `tracking`"
_LOGS: Final = "everything that a stage prints is in the job's log, GET /v1/jobs/{id}/logs"

REFUSED: Final[dict[str, str]] = {
    "accelerator_config": "the service sets Accelerate up itself: batches are never split or "
    "dispatched, and their order is a function of the seed",
    "average_tokens_across_devices": "always so: the loss is divided by the tokens or examples of "
    "the whole accumulated batch over all processes",
    "batch_eval_metrics": _OWN_METRICS,
    "dataloader_in_order": "batches always come in order: a resumed training could not be exact "
    "otherwise",
    "dataloader_multiprocessing_context": "workers are forked, so that they share the "
    "memory-mapped data",
    "ddp_backend": "it is nccl on GPUs and gloo on CPUs",
    "debug": "a loss or gradient that is not finite ends the job with the step's number, and the "
    "TPU's metrics belong to another back end",
    "disable_tqdm": "there is no terminal to draw on: progress is in GET /v1/jobs/{id}",
    "enable_jit_checkpoint": "a job that is interrupted resumes from its newest checkpoint; set "
    "`save_steps` to the work that may be lost",
    "eval_accumulation_steps": "nothing piles up on the device: the outputs of each batch leave it "
    "before the next",
    "eval_do_concat_batches": _OWN_METRICS,
    "eval_use_gather_object": _OWN_METRICS,
    "ignore_data_skip": "a resumed training always continues at the next batch, without reading "
    "those before it",
    "include_for_metrics": _OWN_METRICS,
    "label_names": "each task knows its labels",
    "length_column_name": "`group_by_length` counts the tokens of the prepared examples, without "
    "a column for it",
    "liger_kernel_config": "see `use_liger_kernel`",
    "local_rank": "the launcher gives each process its rank",
    "log_level": _LOGS,
    "log_level_replica": _LOGS,
    "log_on_each_node": _LOGS,
    "logging_nan_inf_filter": "a loss that is not finite is never hidden: it ends the job with "
    "`non_finite_loss`",
    "optim_target_modules": "it belongs to GaLore and APOLLO, which are refused; see `optim`",
    "parallelism_config": "no layer is split between devices here; `resources.strategy` says what "
    "can be spread over processes",
    "prediction_loss_only": "evaluations always report the task's metrics; set `eval_strategy` to "
    "`no` to save their time",
    "project": _TRACKIO,
    "remove_unused_columns": "prepared examples hold only what the model takes",
    "restore_callback_states_from_checkpoint": "there are no callbacks; early stopping resumes "
    "with its count automatically",
    "save_on_each_node": "all processes of a job share one workspace",
    "save_only_model": "a checkpoint without the optimizer's state cannot be resumed from; the "
    "finished model is saved without it anyway",
    "skip_memory_metrics": "the peak is always reported, as `train_peak_memory_bytes`, and costs "
    "nothing",
    "trackio_bucket_id": _TRACKIO,
    "trackio_space_id": _TRACKIO,
    "trackio_static_space_id": _TRACKIO,
    "use_cache": "a cache of keys and values serves generation alone, where it is always on",
    "use_liger_kernel": "the loss needs no logits of a whole batch here either, on a CPU as on a "
    "GPU, and its kernels are not part of the worker; see docs/gpu.md, Fast paths",
}

_APEX: Final = (
    "Apex is not part of the worker; autocast of torch needs no level: use `precision: fp16` or "
    "`precision: bf16`"
)
_BACKEND: Final = (
    "mixed precision is always torch's autocast: use `precision: bf16` or `precision: fp16`"
)
_INFERENCE: Final = "models are compiled with `torch_compile` alone, and for training as well"
_BATCHES: Final = (
    "each process reads its own part of every batch: none is split or sent on; set "
    "`per_device_train_batch_size`"
)
_TPU: Final = "there is no TPU back end: use `resources.gpus`"
_DEVICE: Final = "the device follows from `resources.gpus`"

# Options of transformers 4.x that 5 no longer has.
REMOVED: Final[dict[str, str]] = {
    "_n_gpu": _DEVICE,
    "dispatch_batches": _BATCHES,
    "fp16_backend": _BACKEND,
    "fp16_opt_level": _APEX,
    "half_precision_backend": _BACKEND,
    "include_inputs_for_metrics": _OWN_METRICS,
    "include_tokens_per_second": "always so: `tokens_per_second` is reported at each logging step",
    "jit_mode_eval": _INFERENCE,
    "logging_dir": "every job reports to MLflow, and with `tracking.tensorboard: true` it has "
    "TensorBoard's event file as an artifact; its log is GET /v1/jobs/{id}/logs",
    "mp_parameters": "it belongs to SageMaker's model parallelism; see `resources.strategy`",
    "overwrite_output_dir": "each job has a workspace of its own: there is nothing to overwrite",
    "past_index": "no task here trains on the hidden states of the batch before",
    "ray_scope": "a search compares the finished models of its trials: see POST /v1/searches",
    "save_safetensors": "weights are always saved as safetensors",
    "sharded_ddp": "FairScale is no longer maintained: use `resources.strategy` with `type: fsdp`",
    "sortish_sampler": "use `train_sampling_strategy: group_by_length`",
    "split_batches": _BATCHES,
    "torchdynamo": "use `torch_compile_backend`",
    "tpu_metrics_debug": _TPU,
    "tpu_num_cores": _TPU,
    "use_ipex": _INFERENCE,
    "use_legacy_prediction_loop": "there is one evaluation loop",
    "use_mps_device": _DEVICE,
    "xpu_backend": "it is nccl on GPUs and gloo on CPUs",
}

_GALORE: Final = "its package `galore-torch` is not part of the worker: use `adamw_8bit`"
_APOLLO: Final = "its package `apollo-torch` is not part of the worker: use `adamw_8bit`"
_LOMO: Final = (
    "it updates weights during the backward pass, so that neither accumulation nor clipping of "
    "the whole gradient is possible: use `adafactor`"
)
_SCHEDULE_FREE: Final = (
    "its package `schedulefree` is not part of the worker: use `adamw_torch` with "
    "`lr_scheduler_type: constant_with_warmup`"
)

REFUSED_OPTIMIZERS: Final[dict[str, str]] = {
    "adamw_apex_fused": "Apex is not part of the worker: use `adamw_torch_fused`",
    "adamw_torch_xla": "it belongs to TPUs: use `adamw_torch_fused`",
    "adamw_torch_npu_fused": "it belongs to Ascend NPUs: use `adamw_torch_fused`",
    "adamw_anyprecision": "its package `torchdistx` is no longer maintained: use `adamw_torch`",
    "galore_adamw": _GALORE,
    "galore_adamw_8bit": _GALORE,
    "galore_adafactor": _GALORE,
    "galore_adamw_layerwise": _GALORE,
    "galore_adamw_8bit_layerwise": _GALORE,
    "galore_adafactor_layerwise": _GALORE,
    "lomo": _LOMO,
    "adalomo": _LOMO,
    "grokadamw": "its package `grokadamw` is not part of the worker: use `adamw_torch`",
    "schedule_free_radam": _SCHEDULE_FREE,
    "schedule_free_adamw": _SCHEDULE_FREE,
    "schedule_free_sgd": _SCHEDULE_FREE,
    "apollo_adamw": _APOLLO,
    "apollo_adamw_layerwise": _APOLLO,
    "stable_adamw": "its package `torch-optimi` is not part of the worker: use `adamw_torch`",
}

REFUSED_SAMPLING: Final[dict[str, str]] = {
    "batch_rebalance": "it evens out packed batches between processes; use `group_by_length`",
}
