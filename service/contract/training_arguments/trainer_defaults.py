"""Options of TrainingArguments that TrainingSpec does not have, with the values that have no
effect: their defaults in transformers 4.x and 5.x, and what `to_dict()` makes of those.

Such an option is ignored; set to anything else it is refused (`refused.py`) or belongs to another
section of the spec. Tests compare the table with dumps of transformers from 4.20 to 5.x.
"""

import re
from collections.abc import Mapping
from typing import Any, Final

DEFAULTS: Final[dict[str, tuple[Any, ...]]] = {
    "_n_gpu": (-1, 0, 1),
    "accelerator_config": (None,),
    "average_tokens_across_devices": (True, False),
    "batch_eval_metrics": (False,),
    "dataloader_in_order": (True,),
    "dataloader_multiprocessing_context": (None,),
    "ddp_backend": (None,),
    "ddp_broadcast_buffers": (None,),
    "ddp_bucket_cap_mb": (None,),
    "ddp_find_unused_parameters": (None,),
    "ddp_static_graph": (None,),
    "ddp_timeout": (1800,),
    "debug": (None, "", [], False),
    "deepspeed": (None,),
    "disable_tqdm": (None, False, True),  # the log level decides
    "dispatch_batches": (None,),
    "do_eval": (None, False),
    "do_predict": (None, False),
    "do_train": (None, False, True),
    "enable_jit_checkpoint": (False,),
    "eval_accumulation_steps": (None,),
    "eval_do_concat_batches": (True,),
    "eval_use_gather_object": (False,),
    "fp16_backend": ("auto",),
    "fp16_opt_level": ("O1",),
    "fsdp": (None, "", [], False),
    "fsdp_config": (None,),
    "fsdp_min_num_params": (0,),
    "fsdp_transformer_layer_cls_to_wrap": (None,),
    "generation_config": (None,),
    "generation_max_length": (None,),
    "generation_num_beams": (None,),
    "half_precision_backend": ("auto",),
    "hub_always_push": (False,),
    "hub_model_id": (None,),
    "hub_private_repo": (None, False),
    "hub_revision": (None,),
    "hub_strategy": ("every_save",),
    "hub_token": (None, "<HUB_TOKEN>"),
    "ignore_data_skip": (False,),
    "include_for_metrics": (None, []),
    "include_inputs_for_metrics": (False,),
    "include_tokens_per_second": (False,),
    "jit_mode_eval": (False,),
    "label_names": (None,),
    "length_column_name": ("length",),
    "liger_kernel_config": (None,),
    "local_rank": (-1, 0),
    "log_level": ("passive", -1),
    "log_level_replica": ("passive", "warning", -1),
    "log_on_each_node": (True,),
    "logging_dir": (None,),
    "logging_nan_inf_filter": (True,),
    "mp_parameters": ("",),
    "optim_target_modules": (None,),
    "output_dir": (None, "trainer_output", "tmp_trainer"),
    "overwrite_output_dir": (False,),
    "parallelism_config": (None,),
    "past_index": (-1,),
    "predict_with_generate": (False,),
    "prediction_loss_only": (False,),
    "project": ("huggingface",),
    "push_to_hub": (False,),
    "push_to_hub_model_id": (None,),
    "push_to_hub_organization": (None,),
    "push_to_hub_token": (None, "<PUSH_TO_HUB_TOKEN>"),
    "ray_scope": ("last",),
    "remove_unused_columns": (True,),
    "report_to": (None, "all", "none", "mlflow", [], ["all"], ["none"], ["mlflow"]),
    "restore_callback_states_from_checkpoint": (False,),
    "resume_from_checkpoint": (None,),
    "run_name": (None,),
    "save_on_each_node": (False,),
    "save_only_model": (False,),
    "save_safetensors": (True, None),
    "sharded_ddp": (None, "", [], False),
    "skip_memory_metrics": (True,),
    "sortish_sampler": (False,),
    "split_batches": (None, False),
    "torchdynamo": (None,),
    "tpu_metrics_debug": (False,),
    "tpu_num_cores": (None,),
    "trackio_bucket_id": (None,),
    "trackio_space_id": (None, "trackio"),
    "trackio_static_space_id": (None,),
    "use_cache": (False,),
    "use_ipex": (False,),
    "use_legacy_prediction_loop": (False,),
    "use_liger_kernel": (False,),
    "use_mps_device": (False,),
    "xpu_backend": (None,),
}

# Options that are objects, whose parts have defaults of their own.
PARTS: Final[dict[str, dict[str, Any]]] = {
    "accelerator_config": {
        "split_batches": False,
        "dispatch_batches": None,
        "even_batches": True,
        "use_seedable_sampler": True,
        "non_blocking": False,
        "gradient_accumulation_kwargs": None,
        "use_configured_state": False,
    },
    "fsdp_config": {
        "min_num_params": 0,
        "fsdp_min_num_params": 0,
        "xla": False,
        "xla_fsdp_v2": False,
        "xla_fsdp_grad_ckpt": False,
    },
}

# Every dump of every version has these; a person does not write all of them by hand.
_IN_EVERY_DUMP: Final = frozenset({"output_dir", "local_rank", "disable_tqdm", "label_names"})
# In a dump these are always filled in: with a path that the script needed, with the machine.
_FILLED_IN: Final = frozenset({"output_dir", "logging_dir", "_n_gpu", "local_rank"})
_DEFAULT_LOGGING_DIR: Final = re.compile(r"(^|.*/)runs/[A-Z][a-z]{2}\d\d_\d\d-\d\d-\d\d_[^/]*")


def is_dump(options: Mapping[str, Any]) -> bool:
    """Whether `options` are what `TrainingArguments.to_dict()` returned, perhaps edited."""
    return options.keys() >= _IN_EVERY_DUMP


def is_at_default(name: str, options: Mapping[str, Any]) -> bool:
    """Whether the option `name` of `options` is one of this table at a value that does nothing."""
    value = options[name]
    if name not in DEFAULTS:
        return False
    if any(_same(value, default) for default in DEFAULTS[name]):
        return True
    if isinstance(value, dict) and name in PARTS:
        parts = PARTS[name]
        return all(part in parts and _same(value[part], parts[part]) for part in value)
    return _follows_from_the_others(name, value, options)


def _follows_from_the_others(name: str, value: Any, options: Mapping[str, Any]) -> bool:
    if name == "logging_dir":
        default = isinstance(value, str) and _DEFAULT_LOGGING_DIR.fullmatch(value) is not None
        return default or is_dump(options)
    if name == "do_eval":  # TrainingArguments sets it with a strategy
        strategy = options.get("eval_strategy") or options.get("evaluation_strategy")
        return value is True and strategy not in (None, "no")
    if not is_dump(options):
        return False
    if name == "run_name":
        return bool(value == options["output_dir"])
    if name == "report_to":  # 4.x: every tracker that is installed
        return isinstance(value, list)
    if name == "save_safetensors":  # the default before 4.35
        return value is False and "gradient_checkpointing_kwargs" not in options
    return name in _FILLED_IN


def _same(value: Any, default: Any) -> bool:
    """True is not 1 here."""
    return bool(value == default) and isinstance(value, bool) == isinstance(default, bool)
