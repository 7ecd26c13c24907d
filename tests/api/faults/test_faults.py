"""The words of a 422: golden texts, one per kind of mistake, and all of them at once."""

from typing import Any

import pytest

from service.api.faults.collect import collect
from service.api.openapi.document import EXAMPLE_JOBS
from service.contract.spec.spec import JobSpec
from service.contract.tasks.tasks import TASKS
from tests.api.factories import SPEC, lines, spec


class TestCollect:
    def test_a_valid_spec_has_none(self) -> None:
        findings = collect(SPEC)
        assert (findings.faults, findings.valid_part) == ([], findings.spec)
        assert findings.spec == JobSpec.model_validate(SPEC)

    @pytest.mark.parametrize("example", list(EXAMPLE_JOBS))
    def test_the_examples_of_the_document_have_none(self, example: str) -> None:
        assert lines(EXAMPLE_JOBS[example]["value"]) == []

    @pytest.mark.parametrize(
        ("body", "path", "code", "message"),
        [
            (
                spec(training={"learning_rte": 1e-5}),
                "training.learning_rte",
                "unknown_field",
                "unknown field; did you mean `learning_rate`?",
            ),
            (
                spec(learning_rate=1e-5),
                "learning_rate",
                "unknown_field",
                "unknown field; did you mean `training.learning_rate`?",
            ),
            (
                spec(training={"epochs": 2}),
                "training.epochs",
                "unknown_field",
                "unknown field; did you mean `num_train_epochs`?",
            ),
            (
                spec(webhooks=[{"url": "https://a.example", "secret": "s", "urll": "x"}]),
                "webhooks.0.urll",
                "unknown_field",
                "unknown field; did you mean `url`?",
            ),
            (
                spec(peft={"method": "ia3", "use_dora": True}),
                "peft.use_dora",
                "unknown_field",
                "unknown field of this kind",
            ),
            (
                spec(task="questions-answering"),
                "task",
                "invalid_value",
                f"must be {' or '.join(f'`{name}`' for name in TASKS)}; did you mean "
                "`question-answering`?",
            ),
            (
                spec(model={}),
                "model.name_or_path",
                "conflict",
                "`name_or_path` is required, or `job` for the model of another job, or "
                "`config` for a model from scratch",
            ),
            (
                spec(model={"config": {"model_type": "gpt2"}}),
                "model.tokenizer_name",
                "conflict",
                "`tokenizer_name` is required: a model from scratch has no tokenizer of its own",
            ),
            (
                spec(
                    model={
                        "config": {"model_type": "gpt2"},
                        "tokenizer_name": "gpt2",
                        "name_or_path": "gpt2",
                    }
                ),
                "model.name_or_path",
                "conflict",
                "`name_or_path` is not allowed for a model from scratch, which `config` describes",
            ),
            (
                spec(task={"type": "causal_lm"}),
                "task.type",
                "invalid_value",
                f"must be {' or '.join(f'`{name}`' for name in TASKS)}; did you mean `causal-lm`?",
            ),
            (
                spec(task={"type": "causal-lm", "blocksize": 64}),
                "task.blocksize",
                "unknown_field",
                "unknown field; did you mean `block_size`?",
            ),
            (
                spec(task={"type": "masked-lm", "mlm_probability": 1.5}),
                "task.mlm_probability",
                "invalid_value",
                "must be above 0 and below 1",
            ),
            (
                spec(
                    task={"type": "causal-lm", "text_column": "a"},
                    dataset=SPEC["dataset"] | {"columns": {"text": "b"}},
                ),
                "task.text_column",
                "conflict",
                "`task.text_column` is 'a' but `dataset.columns.text` is 'b': give one of them",
            ),
            (
                spec(
                    dataset=SPEC["dataset"]
                    | {"validation": "file-2", "validation_split_percentage": 5}
                ),
                "dataset.validation_split_percentage",
                "conflict",
                "`dataset.validation_split_percentage` is for data without "
                "`dataset.validation`: give one of them",
            ),
            (
                spec(dataset={"source": "hubb", "name": "a/b"}),
                "dataset.source",
                "invalid_value",
                "must be `hub` or `upload` or `path`; did you mean `hub`?",
            ),
            (
                spec(dataset={"name": "a/b"}),
                "dataset.source",
                "missing_field",
                "required, but not given: must be `hub` or `upload` or `path`",
            ),
            (
                spec(training={"evaluation_strategy": "epochs"}, dataset=SPEC["dataset"]),
                "training.evaluation_strategy",
                "invalid_value",
                "must be `no` or `steps` or `epoch`; did you mean `epoch`?",
            ),
            (
                spec(training={"output_dir": "/x"}),
                "training.output_dir",
                "moved_option",
                "not a field of the spec: the service keeps each job in its own workspace; "
                "download it from /artifacts",
            ),
            (
                spec(training={"parallelism_config": {}}),
                "training.parallelism_config",
                "unsupported_option",
                "refused: no layer is split between devices here; `resources.strategy` says "
                "what can be spread over processes",
            ),
            (
                spec(training={"save_safetensors": False}),
                "training.save_safetensors",
                "unsupported_option",
                "refused: weights are always saved as safetensors",
            ),
            (
                spec(training={"max_query_length": 64}),
                "training.max_query_length",
                "unsupported_option",
                "refused: questions are never cut, only contexts are: into windows of "
                "`task.max_seq_length` tokens",
            ),
            (
                spec(training={"doc_stride": 64}),
                "training.doc_stride",
                "moved_option",
                "not a field of this section: use `task.doc_stride`",
            ),
            (
                spec(train_file="a.json"),
                "train_file",
                "moved_option",
                "not a field of this section: use `dataset.train`",
            ),
            (
                spec(model=SPEC["model"] | {"cache_dir": "/x"}),
                "model.cache_dir",
                "unsupported_option",
                "refused: downloads are kept in the operator's cache, the same for all jobs",
            ),
            (
                spec(priority=10),
                "priority",
                "invalid_value",
                "must be at least 0 and at most 9",
            ),
            (
                spec(training={"max_steps": "many"}),
                "training.max_steps",
                "invalid_type",
                "must be a whole number",
            ),
            (
                spec(training={"bf16": True, "fp16": True}),
                "training.bf16",
                "conflict",
                "`bf16` and `fp16` exclude each other: give one of them",
            ),
            (
                spec(training={"eval_strategy": "epoch"}),
                "training.eval_strategy",
                "conflict",
                "`training.eval_strategy` is `epoch` but `dataset.validation` is not given",
            ),
            (
                spec(task={"type": "question-answering", "max_seq_length": 64}),
                "task.max_seq_length",
                "conflict",
                "`doc_stride` (128) must be below `max_seq_length` (64)",
            ),
            (
                spec(metadata={"a b": "c"}),
                "metadata.a b",
                "invalid_value",
                "invalid name: it must be 1 to 64 letters, digits, `-`, `_` or `.`",
            ),
            (
                spec(dataset={"source": "upload", "train": ["train.jsonl"]}),
                "dataset.train.0",
                "invalid_value",
                "must be a file id (file-…): upload the file first",
            ),
            (
                spec(hub={"model_id": "a/b/c"}),
                "hub.model_id",
                "invalid_value",
                "must be a repository id (`name` or `namespace/name`) of letters, digits, "
                "`-`, `_` and `.`",
            ),
            (
                spec(model={"job": "18a3"}),
                "model.job",
                "invalid_value",
                "must be a job id (job-…)",
            ),
            ([], "", "invalid_type", "must be an object"),
        ],
    )
    def test_golden_text(self, body: Any, path: str, code: str, message: str) -> None:
        assert (path, code, message) in lines(body)

    def test_all_at_once_with_the_rules_behind_faulty_fields(self) -> None:
        body = {
            "task": "questions-answering",
            "model": {},
            "dataset": {"source": "uplod", "train": ["file-1", "x", 5]},
            "training": {
                "learning_rte": "fast",
                "evaluation_strategy": "epochs",
                "bf16": True,
                "fp16": True,
                "max_steps": -5,
            },
            "hub": {},
            "resources": {"gpus": 65},
        }
        assert [line[:2] for line in lines(body)] == [
            ("dataset.source", "invalid_value"),
            ("dataset.train.1", "invalid_value"),
            ("dataset.train.2", "invalid_type"),
            ("hub.model_id", "missing_field"),
            ("model.name_or_path", "conflict"),
            ("resources.gpus", "invalid_value"),
            ("task", "invalid_value"),
            ("training.bf16", "conflict"),
            ("training.evaluation_strategy", "invalid_value"),
            ("training.learning_rte", "unknown_field"),
            ("training.max_steps", "invalid_value"),
        ]

    @pytest.mark.parametrize(
        ("training", "expected"),
        [
            # The guess is `save_steps`, which must be above 0.
            ({"save_step": False}, ["training.save_step"]),
            ({"warmup_step": "many"}, ["training.warmup_step"]),
            # The rules name `eval_strategy`, `per_device_train_batch_size` by their new names.
            ({"evaluation_strategy": "epoch"}, ["training.evaluation_strategy"]),
            ({"load_best_model_at_end": True}, ["training.eval_strategy"]),
            (
                {"load_best_model_at_end": True, "eval_stratgy": "steps"},
                ["training.eval_stratgy"],
            ),
            ({"lr_scheduler_type": "greedy"}, ["training.lr_scheduler_type"]),
            ({"adafactor": True, "optim": "sgd"}, ["training.adafactor"]),
            ({"per_gpu_train_batch_size": 4, "train_batch_size": 8}, ["training.train_batch_size"]),
        ],
    )
    def test_no_fault_for_a_field_that_was_not_given(
        self, training: dict[str, Any], expected: list[str]
    ) -> None:
        """But for one that is missing."""
        assert [path for path, _, _ in lines(spec(training=training))] == expected

    def test_secrets_are_not_repeated(self) -> None:
        secret = "hf_abcdefghijklmnop"
        body = spec(training={"hub_token": secret}, name=["x", secret], tokn=secret)
        body["priority"] = secret
        body["hub"] = {"model_id": f"https://user:{secret}@host/x", secret: 1}
        assert secret not in repr(collect(body).faults)

    def test_a_value_whose_long_name_says_that_it_is_secret_is_hidden(self) -> None:
        _, fault = collect(spec(metadata={"x" * 150 + "_password": ["hunter2"]})).faults
        assert (fault.given, fault.message) == ("[hidden]", "must be text")
        assert fault.path == f"metadata.{'x' * 100}… (159 characters)"

    def test_long_values_are_cut(self) -> None:
        (fault,) = collect(spec(priority="x" * 5000)).faults
        assert fault.given == "x" * 100 + "… (5000 characters)"
