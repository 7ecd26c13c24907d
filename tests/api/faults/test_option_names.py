"""Names of TrainingArguments, of the reference scripts and of other tools: each leads to the field
that is meant, without a word about a guess."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from service.api.faults.collect import collect
from service.api.faults.walk import models_in
from service.contract.spec.spec import JobSpec
from service.contract.spec.training import TrainingSpec
from service.contract.training_arguments.common_names import COMMON_NAMES
from service.contract.training_arguments.script_options import NOT_NEEDED, PLACES
from tests.api.factories import SPEC, fields_at, spec


class TestNamesOfTheScripts:
    @pytest.mark.parametrize(("name", "place"), PLACES.items())
    def test_lead_to_fields(self, name: str, place: str) -> None:
        """Each place exists in the spec, in that of some task."""
        assert fields_at(place), f"{name}: {place}"

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
        seen: set[type[BaseModel]] = set()
        todo: list[type[BaseModel]] = [JobSpec]
        while todo:
            model = todo.pop()
            for name, field in model.model_fields.items():
                todo += [inner for inner in models_in(field.annotation) if inner not in seen]
                seen.update(models_in(field.annotation))
                if field.is_required():
                    assert field.examples, f"{model.__name__}.{name}"
                    annotation: Any = field.annotation
                    adapter: TypeAdapter[Any] = TypeAdapter(annotation)
                    if not list(models_in(field.annotation)):
                        adapter.validate_python(field.examples[0])


Found = list[tuple[str, str | None]]


def suggestions(body: Any) -> Found:
    return [(fault.path, fault.suggestion) for fault in collect(body).faults]


@pytest.mark.parametrize(("name", "places"), COMMON_NAMES.items())
def test_each_leads_to_a_field(name: str, places: tuple[str, ...]) -> None:
    assert all(fields_at(place) for place in places)
    assert suggestions(spec(**{name: "x"})) == [(name, places[0])]


@pytest.mark.parametrize(
    ("body", "expected"),
    [
        (
            spec(training={"batch_size": "many", "lr": -1, "epochs": None}),
            [
                ("training.batch_size", "per_device_train_batch_size"),
                ("training.epochs", "num_train_epochs"),
                ("training.lr", "learning_rate"),
            ],
        ),
        (spec(training={"rank": 8}), [("training.rank", "peft.r")]),
        (spec(peft={"method": "lora", "rank": 8}), [("peft.rank", "r")]),
        (
            spec(task={"type": "causal-lm", "max_len": 64}),
            [("task.max_len", "block_size")],
        ),
        (
            spec(task={"type": "masked-lm", "max-len": 64}),
            [("task.max-len", "max_seq_length")],
        ),
        # Of several tasks' names that which the task of the spec has.
        (spec(task="causal-lm", max_len=64), [("max_len", "task.block_size")]),
        (
            spec(task={"type": "summarization"}, training={"seq_len": 64}),
            [("training.seq_len", "task.max_source_length")],
        ),
        (
            spec(task="masked-lm", training={"cutoff_len": 64}),
            [("training.cutoff_len", "task.max_seq_length")],
        ),
        # What is missing was given by another name: that is one fault.
        (
            {"task": SPEC["task"], "dataset": SPEC["dataset"], "base_model": "org/model"},
            [("base_model", "model.name_or_path")],
        ),
        (
            {"task": SPEC["task"], "model": SPEC["model"], "train_file": "a.json"},
            [("train_file", "dataset.train")],
        ),
    ],
)
def test_suggestions(body: Any, expected: Found) -> None:
    assert suggestions(body) == expected
