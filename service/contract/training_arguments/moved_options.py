"""Options of `transformers.TrainingArguments` that live elsewhere in our job spec, and where."""

from typing import Final

TOKEN: Final = (
    "a token is never part of a spec: name a secret of the project in `secrets.hub_token`; without "
    "one the job has the operator's (FINETUNE_HUB_TOKEN)"
)
ELSEWHERE: Final[dict[str, str]] = {
    "output_dir": "the service keeps each job in its own workspace; download it from /artifacts",
    "push_to_hub": "give the job's `hub` section instead",
    "hub_model_id": "use `hub.model_id`",
    "hub_private_repo": "use `hub.private`",
    "hub_revision": "use `hub.revision`",
    "hub_strategy": "use `hub.strategy`",
    "hub_always_push": "use `hub.always_push`",
    "hub_token": TOKEN,
    "push_to_hub_model_id": "use `hub.model_id`",
    "push_to_hub_organization": "use `hub.model_id`, as `organization/name`",
    "push_to_hub_token": TOKEN,
    "report_to": "every job reports to MLflow; see `tracking`, whose `tensorboard: true` also "
    "writes TensorBoard's event file",
    "run_name": "use `tracking.run_name`",
    "do_train": "a job trains unless `mode` is `evaluate` or `predict`",
    "do_eval": "set `eval_strategy`, and give `dataset.validation`; to score a model without "
    "training it use `mode: evaluate`",
    "do_predict": "give `dataset.test`; to make predictions without training use `mode: predict`",
    "ddp_find_unused_parameters": "use `resources.strategy` with `type: ddp`",
    "ddp_bucket_cap_mb": "use `resources.strategy` with `type: ddp`",
    "ddp_broadcast_buffers": "use `resources.strategy` with `type: ddp`",
    "ddp_static_graph": "use `resources.strategy` with `type: ddp`",
    "ddp_timeout": "use `resources.strategy` with `type: ddp`",
    "fsdp": "use `resources.strategy`",
    "fsdp_config": "use `resources.strategy`",
    "fsdp_min_num_params": "use `resources.strategy` with `type: fsdp`",
    "fsdp_transformer_layer_cls_to_wrap": "use `resources.strategy` with `type: fsdp`",
    "deepspeed": "use `resources.strategy`",
    "resume_from_checkpoint": "a job resumes from its own latest checkpoint automatically; "
    "`resume_from: {job, checkpoint}` continues from a checkpoint of another job, and `model.job` "
    "begins with its model alone",
}
