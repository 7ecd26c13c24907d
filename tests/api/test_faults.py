"""The words of a 422: golden texts, one per kind of mistake, and all of them at once."""

from collections import Counter
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

import httpx
import pytest
from pydantic import BaseModel, TypeAdapter

from service.api.faults.collect import collect
from service.api.faults.shorten import MOST_FAULTS
from service.api.faults.walk import models_in
from service.api.openapi import EXAMPLE_JOBS
from service.contract.aliases import ALIASES
from service.contract.moved_options import ELSEWHERE
from service.contract.refused_options import REFUSED
from service.contract.script_options import NOT_NEEDED, PLACES
from service.contract.spec import JobSpec
from service.contract.tasks import TASKS
from service.contract.training import TrainingSpec
from tests.api.conftest import Server
from tests.api.factories import SPEC, spec
from tests.api.hostile_bodies import hostile_bodies

Line = tuple[str, str, str]


def lines(body: Any) -> list[Line]:
    return [(fault.path, fault.code, fault.message) for fault in collect(body).faults]


class TestCollect:
    def test_a_valid_spec_has_none(self) -> None:
        findings = collect(SPEC)
        assert (findings.faults, findings.valid_part) == ([], findings.spec)
        assert findings.spec == JobSpec.model_validate(SPEC)

    @pytest.mark.parametrize("example", list(EXAMPLE_JOBS))
    def test_the_examples_of_the_document_have_none(self, example: str) -> None:
        assert lines(EXAMPLE_JOBS[example]["value"]) == []

    @pytest.mark.parametrize(
        ("body", "expected"),
        [
            (
                spec(training={"learning_rte": 1e-5}),
                (
                    "training.learning_rte",
                    "unknown_field",
                    "unknown field; did you mean `learning_rate`?",
                ),
            ),
            (
                spec(learning_rate=1e-5),
                (
                    "learning_rate",
                    "unknown_field",
                    "unknown field; did you mean `training.learning_rate`?",
                ),
            ),
            (
                spec(training={"epochs": 2}),
                (
                    "training.epochs",
                    "unknown_field",
                    "unknown field; did you mean `num_train_epochs`?",
                ),
            ),
            (
                spec(peft={"method": "ia3", "use_dora": True}),
                ("peft.use_dora", "unknown_field", "unknown field of this kind"),
            ),
            (
                spec(task="questions-answering"),
                (
                    "task",
                    "invalid_value",
                    f"must be {' or '.join(f'`{name}`' for name in TASKS)}; did you mean "
                    "`question-answering`?",
                ),
            ),
            (
                spec(model={}),
                (
                    "model.name_or_path",
                    "conflict",
                    "`name_or_path` is required, or `job` for the model of another job, or "
                    "`config` for a model from scratch",
                ),
            ),
            (
                spec(model={"config": {"model_type": "gpt2"}}),
                (
                    "model.tokenizer_name",
                    "conflict",
                    "`tokenizer_name` is required: a model from scratch has no tokenizer of its "
                    "own",
                ),
            ),
            (
                spec(
                    model={
                        "config": {"model_type": "gpt2"},
                        "tokenizer_name": "gpt2",
                        "name_or_path": "gpt2",
                    }
                ),
                (
                    "model.name_or_path",
                    "conflict",
                    "`name_or_path` is not allowed for a model from scratch, which `config` "
                    "describes",
                ),
            ),
            (
                spec(task={"type": "causal_lm"}),
                (
                    "task.type",
                    "invalid_value",
                    f"must be {' or '.join(f'`{name}`' for name in TASKS)}; did you mean "
                    "`causal-lm`?",
                ),
            ),
            (
                spec(task={"type": "causal-lm", "blocksize": 64}),
                ("task.blocksize", "unknown_field", "unknown field; did you mean `block_size`?"),
            ),
            (
                spec(task={"type": "masked-lm", "mlm_probability": 1.5}),
                ("task.mlm_probability", "invalid_value", "must be above 0 and below 1"),
            ),
            (
                spec(
                    task={"type": "causal-lm", "text_column": "a"},
                    dataset=SPEC["dataset"] | {"columns": {"text": "b"}},
                ),
                (
                    "task.text_column",
                    "conflict",
                    "`task.text_column` is 'a' but `dataset.columns.text` is 'b': give one of them",
                ),
            ),
            (
                spec(
                    dataset=SPEC["dataset"]
                    | {"validation": "file-2", "validation_split_percentage": 5}
                ),
                (
                    "dataset.validation_split_percentage",
                    "conflict",
                    "`dataset.validation_split_percentage` is for data without "
                    "`dataset.validation`: give one of them",
                ),
            ),
            (
                spec(dataset={"source": "hubb", "name": "a/b"}),
                (
                    "dataset.source",
                    "invalid_value",
                    "must be `hub` or `upload` or `path`; did you mean `hub`?",
                ),
            ),
            (
                spec(dataset={"name": "a/b"}),
                (
                    "dataset.source",
                    "missing_field",
                    "required, but not given: must be `hub` or `upload` or `path`",
                ),
            ),
            (
                spec(training={"evaluation_strategy": "epochs"}, dataset=SPEC["dataset"]),
                (
                    "training.evaluation_strategy",
                    "invalid_value",
                    "must be `no` or `steps` or `epoch`; did you mean `epoch`?",
                ),
            ),
            (
                spec(training={"output_dir": "/x"}),
                (
                    "training.output_dir",
                    "moved_option",
                    "not a field of the spec: the service keeps each job in its own workspace; "
                    "download it from /artifacts",
                ),
            ),
            (
                spec(training={"parallelism_config": {}}),
                (
                    "training.parallelism_config",
                    "unsupported_option",
                    "refused: no layer is split between devices here; `resources.strategy` says "
                    "what can be spread over processes",
                ),
            ),
            (
                spec(training={"save_safetensors": False}),
                (
                    "training.save_safetensors",
                    "unsupported_option",
                    "refused: weights are always saved as safetensors",
                ),
            ),
            (
                spec(training={"max_query_length": 64}),
                (
                    "training.max_query_length",
                    "unsupported_option",
                    "refused: questions are never cut, only contexts are: into windows of "
                    "`task.max_seq_length` tokens",
                ),
            ),
            (
                spec(training={"doc_stride": 64}),
                (
                    "training.doc_stride",
                    "moved_option",
                    "not a field of this section: use `task.doc_stride`",
                ),
            ),
            (
                spec(train_file="a.json"),
                (
                    "train_file",
                    "moved_option",
                    "not a field of this section: use `dataset.train`",
                ),
            ),
            (
                spec(model=SPEC["model"] | {"cache_dir": "/x"}),
                (
                    "model.cache_dir",
                    "unsupported_option",
                    "refused: downloads are kept in the operator's cache, the same for all jobs",
                ),
            ),
            (
                spec(priority=10),
                ("priority", "invalid_value", "must be at least 0 and at most 9"),
            ),
            (
                spec(training={"max_steps": "many"}),
                ("training.max_steps", "invalid_type", "must be a whole number"),
            ),
            (
                spec(training={"bf16": True, "fp16": True}),
                (
                    "training.bf16",
                    "conflict",
                    "`bf16` and `fp16` exclude each other: give one of them",
                ),
            ),
            (
                spec(training={"eval_strategy": "epoch"}),
                (
                    "training.eval_strategy",
                    "conflict",
                    "`training.eval_strategy` is `epoch` but `dataset.validation` is not given",
                ),
            ),
            (
                spec(task={"type": "question-answering", "max_seq_length": 64}),
                (
                    "task.max_seq_length",
                    "conflict",
                    "`doc_stride` (128) must be below `max_seq_length` (64)",
                ),
            ),
            (
                spec(metadata={"a b": "c"}),
                (
                    "metadata.a b",
                    "invalid_value",
                    "invalid name: it must be text that matches ^[A-Za-z0-9._-]{1,64}$",
                ),
            ),
            ([], ("", "invalid_type", "must be an object")),
        ],
    )
    def test_golden_text(self, body: Any, expected: Line) -> None:
        assert expected in lines(body)

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

    def test_long_values_are_cut(self) -> None:
        (fault,) = collect(spec(priority="x" * 5000)).faults
        assert fault.given == "x" * 100 + "… (5000 characters)"


class TestHostileBodies:
    """Their cost is bounded by work, not measured in seconds."""

    @pytest.mark.parametrize("body", hostile_bodies().values(), ids=hostile_bodies())
    def test_one_validation_and_a_bounded_list(
        self, body: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        validated: list[Any] = []
        compared: list[str] = []
        validate, compare = JobSpec.model_validate, SequenceMatcher.quick_ratio

        def counted_validation(given: Any, **options: Any) -> JobSpec:
            validated.append(given)
            return validate(given, **options)

        def counted_comparison(matcher: SequenceMatcher[str]) -> float:
            compared.append(matcher.a)
            return compare(matcher)

        monkeypatch.setattr(JobSpec, "model_validate", counted_validation)
        monkeypatch.setattr(SequenceMatcher, "quick_ratio", counted_comparison)
        faults = collect(body).faults
        assert 0 < len(faults) <= MOST_FAULTS
        assert len(validated) == 1
        assert _entries(validated[0]) < 25_000
        assert len(compared) < 100 * MOST_FAULTS
        assert max(len(name) for name in [*compared, ""]) < 100

    def test_every_section_has_its_share_of_the_list(self) -> None:
        unknown = {f"learning_rate{number}": 1 for number in range(5000)}
        faults = lines(spec(training=unknown, resources=unknown, priority=10))
        assert ("priority", "invalid_value", "must be at least 0 and at most 9") in faults
        sections = Counter(path.partition(".")[0] for path, _, _ in faults)
        assert sections == {"training": 33, "resources": 33, "priority": 1}

    def test_nothing_that_is_valid_is_shortened(self) -> None:
        labels = {str(number): f"label {number}" for number in range(5000)}
        sets = {f"set{number}": [f"file-{item}" for item in range(1000)] for number in range(20)}
        body = spec(
            model={
                "config": {"model_type": "bert", "config_overrides": {"id2label": labels}},
                "tokenizer_name": "org/tokenizer",
            },
            dataset={"source": "upload", "train": "file-1", "validation": sets},
        )
        assert collect(body).spec == JobSpec.model_validate(body)


def _entries(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return len(inner) + sum(map(_entries, inner))


class TestNamesOfTheScripts:
    @pytest.mark.parametrize(("name", "place"), PLACES.items())
    def test_lead_to_fields(self, name: str, place: str) -> None:
        """Each place exists in the spec, in that of some task."""
        models: list[type[BaseModel]] = [JobSpec]
        for part in place.split("."):
            fields = [model.model_fields[part] for model in models if part in model.model_fields]
            assert fields, f"{name}: {place}"
            models = [inner for field in fields for inner in models_in(field.annotation)]

    @pytest.mark.parametrize(
        "names",
        [
            "cache_dir config_name config_overrides dtype ignore_mismatched_sizes "
            "low_cpu_mem_usage model_name_or_path model_revision model_type token tokenizer_name "
            "torch_dtype trust_remote_code use_auth_token use_fast use_fast_tokenizer "
            "resize_position_embeddings",
            "dataset_config_name dataset_name max_eval_samples max_predict_samples "
            "max_train_samples overwrite_cache preprocessing_num_workers pad_to_max_length "
            "streaming test_file train_file validation_file validation_split_percentage",
            "doc_stride max_answer_length max_seq_length n_best_size null_score_diff_threshold "
            "version_2_with_negative start_n_top end_n_top",
            "data_dir do_lower_case eval_all_checkpoints evaluate_during_training lang_id "
            "max_query_length predict_file server_ip server_port threads verbose_logging",
            "block_size keep_linebreaks line_by_line mlm_probability",
            "label_all_tokens label_column_name return_entity_level_metrics task_name "
            "text_column_name",
            "forced_bos_token ignore_pad_token_for_loss lang max_source_length max_target_length "
            "num_beams source_lang source_prefix summary_column target_lang text_column "
            "val_max_target_length",
        ],
    )
    def test_are_known_in_training(self, names: str) -> None:
        for name in names.split():
            (fault,) = collect(spec(training={name: "x"})).faults
            assert fault.code in {"moved_option", "unsupported_option"}, name

    def test_are_not_fields_themselves(self) -> None:
        assert not set(PLACES) & set(NOT_NEEDED)
        assert not (set(PLACES) | set(NOT_NEEDED)) & set(TrainingSpec.model_fields)


class TestExamples:
    def test_every_required_field_has_a_valid_one(self) -> None:
        """A client finds them in the document."""
        seen = set()
        todo: list[type[BaseModel]] = [JobSpec]
        while todo:
            model = todo.pop()
            for name, field in model.model_fields.items():
                todo += [inner for inner in models_in(field.annotation) if inner not in seen]
                seen.update(models_in(field.annotation))
                if field.is_required():
                    assert field.examples, f"{model.__name__}.{name}"
                    adapter: TypeAdapter[Any] = TypeAdapter(field.annotation)
                    if not list(models_in(field.annotation)):
                        adapter.validate_python(field.examples[0])


class TestNames:
    def test_every_option_of_the_installed_transformers_is_accounted_for(self) -> None:
        import dataclasses

        from transformers import TrainingArguments

        installed = {field.name for field in dataclasses.fields(TrainingArguments)}
        tables = (set(TrainingSpec.model_fields), set(ELSEWHERE), set(REFUSED), set(ALIASES))
        assert installed <= set().union(*tables)
        assert installed >= set(REFUSED)
        assert sum(map(len, tables)) == len(set().union(*tables))


class TestSemantic:
    def errors(self, client: httpx.Client, body: dict[str, Any]) -> list[tuple[str, str]]:
        answer = client.post("/v1/jobs/validate", json=body).json()
        return [(fault["path"], fault["code"]) for fault in answer["errors"]]

    def test_unknown_files(self, server: Server) -> None:
        answer = server.client.post(
            "/v1/files", files={"file": ("a", b"x")}, data={"purpose": "fine-tune"}
        )
        known = answer.json()["id"]
        body = spec(dataset={"source": "upload", "train": [known, "file-0"], "test": "file-1"})
        assert self.errors(server.client, body) == [
            ("dataset.test.0", "unknown_file"),
            ("dataset.train.1", "unknown_file"),
        ]

    def test_unknown_files_of_named_validation_sets(self, client: httpx.Client) -> None:
        sets = {"easy": "file-1", "hard": ["file-2", "x"]}
        body = spec(dataset={"source": "upload", "train": "file-0", "validation": sets})
        assert self.errors(client, body) == [
            ("dataset.train.0", "unknown_file"),
            ("dataset.validation.easy.0", "unknown_file"),
            ("dataset.validation.hard.0", "unknown_file"),
            ("dataset.validation.hard.1", "invalid_value"),
        ]

    def test_unknown_files_are_found_next_to_other_faults(self, client: httpx.Client) -> None:
        body = spec(dataset={"source": "upload", "train": ["file-0"]}, priority=99)
        assert self.errors(client, body) == [
            ("dataset.train.0", "unknown_file"),
            ("priority", "invalid_value"),
        ]

    def test_paths_outside_the_roots(self, server: Server, tmp_path: Path) -> None:
        (root,) = server.settings.data_roots
        (root / "out").symlink_to(tmp_path)
        good = str(root / "a.jsonl")
        bad = ["/etc/passwd", f"{root}/../x", str(root / "out" / "x"), "a.jsonl", "/x" * 2000]
        body = spec(dataset={"source": "path", "train": [good, *bad]})
        assert self.errors(server.client, body) == [
            (f"dataset.train.{number}", "path_not_allowed") for number in range(1, 6)
        ]

    def test_model_paths_without_any_roots(self, client: httpx.Client) -> None:
        body = spec(
            model={"name_or_path": "/srv/m", "tokenizer_name": "../t", "config_name": "o/c"}
        )
        assert self.errors(client, body) == [
            ("model.name_or_path", "path_not_allowed"),
            ("model.tokenizer_name", "path_not_allowed"),
        ]
