"""Arguments of the reference scripts (run_qa, run_clm, …) that TrainingArguments does not have.

`PLACES` maps them to their places in a job spec: for errors about options at the wrong level, and
for `finetune convert`. `NOT_NEEDED` explains why an option does not exist and what to use instead.
"""

from typing import Final

from service.contract.training_arguments.moved_options import TOKEN

PLACES: Final[dict[str, str]] = {
    # Model
    "model_name_or_path": "model.name_or_path",
    "model_type": "model.config.model_type",
    "config_overrides": "model.config.config_overrides",
    "config_name": "model.config_name",
    "tokenizer_name": "model.tokenizer_name",
    "model_revision": "model.revision",
    "torch_dtype": "model.dtype",
    "dtype": "model.dtype",
    # Data
    "dataset_name": "dataset.name",
    "dataset_config_name": "dataset.config",
    "train_file": "dataset.train",
    "validation_file": "dataset.validation",
    "test_file": "dataset.test",
    "predict_file": "dataset.validation",
    "train_split_name": "dataset.train",
    "validation_split_name": "dataset.validation",
    "test_split_name": "dataset.test",
    "validation_split_percentage": "dataset.validation_split_percentage",
    "max_train_samples": "dataset.max_train_samples",
    "max_eval_samples": "dataset.max_eval_samples",
    "max_val_samples": "dataset.max_eval_samples",
    "max_predict_samples": "dataset.max_predict_samples",
    "max_test_samples": "dataset.max_predict_samples",
    "text_column_name": "dataset.columns",
    "text_column_names": "dataset.columns",
    "label_column_name": "dataset.columns",
    "question_column": "dataset.columns",
    "context_column": "dataset.columns",
    "answer_column": "dataset.columns",
    # Tasks
    "version_2_with_negative": "task.version_2_with_negative",
    "max_seq_length": "task.max_seq_length",
    "doc_stride": "task.doc_stride",
    "n_best_size": "task.n_best_size",
    "max_answer_length": "task.max_answer_length",
    "null_score_diff_threshold": "task.null_score_diff_threshold",
    "start_n_top": "task.start_n_top",
    "end_n_top": "task.end_n_top",
    "block_size": "task.block_size",
    "keep_linebreaks": "task.keep_linebreaks",
    "mlm_probability": "task.mlm_probability",
    "line_by_line": "task.line_by_line",
    "whole_word_mask": "task.whole_word_mask",
    "label_all_tokens": "task.label_all_tokens",
    "do_regression": "task.problem_type",
    "max_source_length": "task.max_source_length",
    "max_target_length": "task.max_target_length",
    "val_max_target_length": "task.val_max_target_length",
    "source_prefix": "task.source_prefix",
    "source_lang": "task.source_lang",
    "target_lang": "task.target_lang",
    "lang": "task.lang",
    "forced_bos_token": "task.forced_bos_token",
    "ignore_pad_token_for_loss": "task.ignore_pad_token_for_loss",
    "text_column": "task.text_column",
    "summary_column": "task.summary_column",
    "num_beams": "task.num_beams",
    "predict_with_generate": "task.predict_with_generate",
    "generation_max_length": "task.generation_max_length",
    "generation_num_beams": "task.num_beams",
    "generation_config": "task.generation",
    # Scripts without a Trainer
    "max_length": "task.max_seq_length",
    "num_warmup_steps": "training.warmup_steps",
    "max_train_steps": "training.max_steps",
    "checkpointing_steps": "training.save_steps",
    # Launchers
    "nproc_per_node": "resources.gpus",
    "num_gpus": "resources.gpus",
    "mixed_precision": "training.precision",
}

_DEBUGGER: Final = "no debugger can be attached to a training"
_THREADS: Final = "the worker chooses how many threads and processes prepare the data"
_OWN_METRICS: Final = (
    "each task computes its own metrics; choose one with `training.metric_for_best_model`"
)
_SPLIT: Final = "name the splits in `dataset.train`, `dataset.validation` and `dataset.test`"

NOT_NEEDED: Final[dict[str, str]] = {
    "cache_dir": "downloads are kept in the operator's cache, the same for all jobs",
    "callbacks": "a spec holds no Python objects; for EarlyStoppingCallback use "
    "`training.early_stopping_patience`",
    "data_dir": "name the files: `dataset.train`, `dataset.validation`, `dataset.test`",
    "do_lower_case": "the tokenizer's own configuration decides; choose a cased or an uncased "
    "model with `model.name_or_path`",
    "eval_all_checkpoints": "set `training.eval_strategy` and `training.save_strategy` alike: each "
    "checkpoint is evaluated when it is written",
    "evaluate_during_training": "use `training.eval_strategy: steps`",
    "freeze_embeds": "to train a part of the weights use `peft`",
    "freeze_encoder": "to train a part of the weights use `peft`",
    "ignore_mismatched_sizes": "a head of another size than the labels need is always newly "
    "initialised",
    "lang_id": "language embeddings of XLM are not set; use a model without them",
    "learning_rate_multiplier": "there is no rate that it would multiply: set "
    "`training.learning_rate`",
    "low_cpu_mem_usage": "safetensors are read without a second copy in memory",
    "max_query_length": "questions are never cut, only contexts are: into windows of "
    "`task.max_seq_length` tokens",
    "metric_name": _OWN_METRICS,
    "overwrite_cache": "prepared data is found by its content and made again when that changes",
    "pad_to_max_length": "batches are padded to their longest example, or not at all "
    "(`training.padding_free`)",
    "preprocessing_num_workers": _THREADS,
    "remove_splits": _SPLIT,
    "resize_position_embeddings": "position embeddings are never resized: lower "
    "`task.max_source_length` to the model's limit",
    "return_entity_level_metrics": "metrics of each type are always reported",
    "server_ip": _DEBUGGER,
    "server_port": _DEBUGGER,
    "shuffle_seed": "use `training.data_seed`",
    "shuffle_train_dataset": "the order is `training.train_sampling_strategy`, `random` by default",
    "streaming": "data is prepared as a whole before the first step",
    "task_name": "use `dataset: {source: hub, name: nyu-mll/glue, config: <task>}`; "
    "`finetune convert` writes it with the task's columns",
    "threads": _THREADS,
    "token": TOKEN,
    "trust_remote_code": "code from the Hub is never run",
    "use_auth_token": TOKEN,
    "task_type": "it follows from the job's `task`",
    "use_fast_tokenizer": "a fast tokenizer is used wherever the model has one",
    "use_fast": "a fast tokenizer is used wherever the model has one",
    "verbose_logging": "everything that a stage prints is in the job's log",
    "with_tracking": "every job reports to MLflow; see `tracking`",
}
