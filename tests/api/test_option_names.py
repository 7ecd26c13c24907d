"""Names of TrainingArguments and of the reference scripts: each is known, and leads somewhere."""

from typing import Any

import pytest
from pydantic import BaseModel, TypeAdapter

from service.api.faults.collect import collect
from service.api.faults.walk import models_in
from service.contract.spec import JobSpec
from service.contract.training import TrainingSpec
from service.contract.training_arguments.aliases import ALIASES
from service.contract.training_arguments.moved_options import ELSEWHERE
from service.contract.training_arguments.refused_options import REFUSED
from service.contract.training_arguments.script_options import NOT_NEEDED, PLACES
from tests.api.factories import spec


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


class TestNames:
    def test_every_option_of_the_installed_transformers_is_accounted_for(self) -> None:
        import dataclasses

        from transformers import TrainingArguments

        installed = {field.name for field in dataclasses.fields(TrainingArguments)}
        tables = (set(TrainingSpec.model_fields), set(ELSEWHERE), set(REFUSED), set(ALIASES))
        assert installed <= set().union(*tables)
        assert installed >= set(REFUSED)
        assert sum(map(len, tables)) == len(set().union(*tables))
