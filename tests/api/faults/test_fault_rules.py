"""Rules between fields of a spec, among faults of the fields themselves."""

from typing import Any

import pytest

from tests.api.factories import SPEC, lines, spec


class TestRules:
    def test_rules_between_sections_beside_faults_in_each_of_them(self) -> None:
        """Whatever the valid fields decide is found, and nothing that a faulty one would."""
        body = {
            "mode": "train",
            "task": {"type": "question-answering", "max_seq_length": 64, "n_best_size": 0},
            "model": {"name_or_path": "org/model", "dtype": "bfloat16", "revison": "main"},
            "dataset": {
                "source": "hub",
                "name": "org/data",
                "max_bad_fraction": 2,
                "validation": {"a": "one", "b": "two"},
                "validation_split_percentage": 5,
            },
            "training": {
                "eval_strategy": "steps",
                "load_best_model_at_end": True,
                "save_strategy": "never",
                "label_smoothing_factor": 0.1,
                "fp16": True,
                "padding_free": True,
                "optim": "adafactor",
                "max_steps": 1.5,
                "warmup_ratio": 3,
            },
            "peft": {"method": "prefix-tuning", "num_virtual_tokens": 0, "init_weights": "zero"},
            "resources": {
                "gpus": 2,
                "strategy": {"type": "deepspeed", "zero_stage": 3, "timeout": 0},
            },
            "priority": 10,
        }
        assert lines(body) == [
            (
                "dataset.max_bad_fraction",
                "invalid_value",
                "must be at least 0 and at most 1",
            ),
            (
                "dataset.validation",
                "conflict",
                "the best model is chosen by `training.metric_for_best_model`: with several sets "
                "in `dataset.validation` name a metric of one of them, such as `<name>_loss`",
            ),
            (
                "dataset.validation_split_percentage",
                "conflict",
                "`dataset.validation_split_percentage` is for data without `dataset.validation`: "
                "give one of them",
            ),
            (
                "model.dtype",
                "conflict",
                "`model.dtype: bfloat16`: `deepspeed` needs `float32` weights",
            ),
            ("model.revison", "unknown_field", "unknown field; did you mean `revision`?"),
            ("peft.num_virtual_tokens", "invalid_value", "must be at least 1 and at most 100000"),
            ("priority", "invalid_value", "must be at least 0 and at most 9"),
            (
                "resources.strategy.timeout",
                "invalid_value",
                "must be at least 1 and at most 604800",
            ),
            (
                "resources.strategy.zero_stage",
                "conflict",
                "`zero_stage: 3` is refused: `fsdp` splits weights, too; use that",
            ),
            (
                "task.max_seq_length",
                "conflict",
                "`doc_stride` (128) must be below `max_seq_length` (64)",
            ),
            ("task.n_best_size", "invalid_value", "must be at least 1 and at most 1000"),
            (
                "training.fp16",
                "conflict",
                "`training.fp16` needs whole gradients to scale the loss: with `deepspeed` use "
                "`bf16`",
            ),
            (
                "training.label_smoothing_factor",
                "conflict",
                "`training.label_smoothing_factor` smooths class labels, and a "
                "`question-answering` model predicts two positions instead",
            ),
            ("training.max_steps", "invalid_type", "must be a whole number"),
            (
                "training.optim",
                "conflict",
                "`training.optim: adafactor` cannot update the shards of `deepspeed`: use one of "
                "`adamw_torch`, `adamw_torch_fused`, `sgd`, `rmsprop`",
            ),
            (
                "training.padding_free",
                "conflict",
                "`training.padding_free` excludes `peft` by `prefix-tuning`: use `lora` or `ia3`",
            ),
            (
                "training.save_strategy",
                "invalid_value",
                "must be `no` or `steps` or `epoch` or `best`",
            ),
            (
                "training.warmup_ratio",
                "conflict",
                "`warmup_ratio` must be below 1; for a number of steps use `warmup_steps`",
            ),
        ]

    @pytest.mark.parametrize(
        ("changes", "undecided"),
        [
            ({"dataset": {"source": "hubb", "name": "org/data"}}, "dataset.source"),
            ({"dataset": {**SPEC["dataset"], "validation": []}}, "dataset.validation"),
            ({"dataset": {**SPEC["dataset"], "validaton": "x"}}, "dataset.validaton"),
            ({"dataset": 5}, "dataset"),
            ({"mode": "trian"}, "mode"),
        ],
    )
    def test_a_rule_that_reads_a_faulty_field_says_nothing(
        self, changes: dict[str, Any], undecided: str
    ) -> None:
        """With valid ones `training.eval_strategy` would need `dataset.validation`."""
        body = spec(training={"eval_strategy": "epoch"}) | changes
        assert [path for path, _, _ in lines(body)] == [undecided]

    def test_a_rule_is_one_fault_whatever_its_punctuation(self) -> None:
        training = {"auto_find_batch_size": True}
        (fault,) = lines(spec(training=training, resources={"gpus": 2}))
        assert fault[:2] == ("training.on_oom", "conflict")
        assert fault[2].endswith("with several, lower `per_device_train_batch_size` instead")

    def test_options_that_disagree_do_not_hide_other_faults(self) -> None:
        body = spec(training={"adafactor": True, "optim": "sgd", "seed": -1})
        assert [line[:2] for line in lines(body)] == [
            ("training.adafactor", "conflict"),
            ("training.seed", "invalid_value"),
        ]

    def test_refused_options_do_not_hide_other_faults(self) -> None:
        strategy = {"type": "fsdp", "sharding_strategy": 1, "cpu_ofload": True}
        body = spec(resources={"gpus": 2, "strategy": strategy})
        assert [line[:2] for line in lines(body)] == [
            ("resources.strategy.cpu_ofload", "unknown_field"),
            ("resources.strategy.sharding_strategy", "conflict"),
        ]

    def test_a_rule_that_reads_a_value_of_the_wrong_type_says_nothing(self) -> None:
        body = spec(training={"eval_strategy": 5, "load_best_model_at_end": True})
        assert lines(body) == [
            ("training.eval_strategy", "invalid_value", "must be `no` or `steps` or `epoch`")
        ]
