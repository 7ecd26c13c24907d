"""TrainingArguments as people paste them: whole dumps of every version, with few options set."""

import json
from dataclasses import MISSING
from enum import Enum
from typing import Any

import pytest
import transformers
from pydantic import ValidationError

from service.contract.spec.training import TrainingSpec, ignored_options
from service.contract.training_arguments.moved_options import ELSEWHERE
from service.contract.training_arguments.refused_options import REFUSED, REMOVED
from service.contract.training_arguments.script_options import PLACES
from service.contract.training_arguments.trainer_defaults import DEFAULTS, PARTS, is_at_default
from tests.contract.factories import DUMPS, job_spec

THEIRS = {
    field.name: field.default.value if isinstance(field.default, Enum) else field.default
    for field in transformers.Seq2SeqTrainingArguments.__dataclass_fields__.values()
    if field.init
}


@pytest.fixture(scope="module")
def installed() -> dict[str, Any]:
    """As JSON, the way it is stored and pasted."""
    arguments = transformers.Seq2SeqTrainingArguments(use_cpu=True)
    dump: dict[str, Any] = json.loads(arguments.to_json_string())
    return dump | {"use_cpu": False, "dataloader_pin_memory": True}


def faults(options: dict[str, Any]) -> list[str]:
    try:
        TrainingSpec.model_validate(options)
    except ValidationError as error:
        return sorted(str(fault["loc"][0] if fault["loc"] else fault) for fault in error.errors())
    return []


class TestTable:
    @pytest.mark.parametrize("name", sorted(THEIRS.keys() - TrainingSpec.model_fields.keys()))
    def test_has_the_defaults_of_the_installed_version(self, name: str) -> None:
        if name not in {"gradient_checkpointing", "gradient_checkpointing_kwargs"}:  # aliases
            default = [] if THEIRS[name] is MISSING else THEIRS[name]  # a factory of lists
            assert is_at_default(name, {name: default})

    @pytest.mark.parametrize("name", DEFAULTS)
    def test_has_only_what_is_explained(self, name: str) -> None:
        assert sum(name in table for table in (REFUSED, REMOVED, ELSEWHERE, PLACES)) == 1
        assert name not in TrainingSpec.model_fields

    def test_has_every_part_of_the_objects(self, installed: dict[str, Any]) -> None:
        assert installed["accelerator_config"].items() <= PARTS["accelerator_config"].items()


class TestDumps:
    def test_of_the_installed_version_is_accepted(self, installed: dict[str, Any]) -> None:
        assert len(installed) > 110
        assert faults(installed) == []
        spec = TrainingSpec.model_validate(installed)
        unlike = {"precision", "activation_checkpointing", "eval_on_start"}
        unlike |= {"dataloader_num_workers", "per_device_eval_batch_size"}
        defaults = TrainingSpec()
        for name in TrainingSpec.model_fields.keys() - unlike:
            assert getattr(spec, name) == getattr(defaults, name), name

    @pytest.mark.parametrize("version", DUMPS)
    def test_of_4x_is_accepted(self, version: str) -> None:
        assert len(DUMPS[version]) > 100
        assert faults(DUMPS[version]) == []
        # What is stored can be read again, and does not hold what was ignored.
        spec = TrainingSpec.model_validate(DUMPS[version])
        assert TrainingSpec.model_validate(spec.model_dump()) == spec

    @pytest.mark.parametrize("version", DUMPS)
    def test_names_what_was_ignored(self, version: str) -> None:
        ignored = ignored_options(DUMPS[version])
        assert {"output_dir", "logging_dir", "local_rank", "hub_token", "past_index"} <= set(
            ignored
        )
        assert not set(ignored) & set(TrainingSpec.model_fields)

    def test_computes_in_32_bits_as_the_dump_says(self, installed: dict[str, Any]) -> None:
        assert TrainingSpec.model_validate(installed).precision == "fp32"
        assert TrainingSpec.model_validate(installed | {"bf16": True}).precision == "bf16"

    @pytest.mark.parametrize(
        ("changes", "wrong"),
        [
            ({"bf16": True, "learning_rate": 3e-4, "gradient_accumulation_steps": 4}, []),
            ({"optim": "adafactor", "weight_decay": 0.1, "warmup_ratio": 0.06}, []),
            (
                {
                    "do_train": True,
                    "do_eval": True,
                    "eval_strategy": "epoch",
                    "save_strategy": "epoch",
                    "load_best_model_at_end": True,
                    "metric_for_best_model": "eval_f1",
                    "greater_is_better": True,
                },
                [],
            ),
            ({"save_safetensors": False}, ["save_safetensors"]),
            (
                {"fp16_opt_level": "O2", "half_precision_backend": "apex"},
                ["fp16_opt_level", "half_precision_backend"],
            ),
            ({"push_to_hub": True, "hub_model_id": "a/b"}, ["hub_model_id", "push_to_hub"]),
            ({"deepspeed": "ds.json", "label_names": ["x"]}, ["deepspeed", "label_names"]),
            ({"accelerator_config": {"split_batches": True}}, ["accelerator_config"]),
            ({"fsdp": ["full_shard"]}, ["fsdp"]),
            ({"predict_with_generate": True}, ["predict_with_generate"]),
            ({"past_index": True}, ["past_index"]),
            ({"do_predict": True, "do_eval": True}, ["do_eval", "do_predict"]),
        ],
    )
    def test_with_options_set_have_the_faults_that_are_true(
        self, changes: dict[str, Any], wrong: list[str]
    ) -> None:
        assert faults(DUMPS["4.57.1"] | changes) == wrong

    def test_gradient_checkpointing_of_the_installed_version(
        self, installed: dict[str, Any]
    ) -> None:
        with pytest.warns(FutureWarning, match="gradient_checkpointing"):
            arguments = transformers.TrainingArguments(gradient_checkpointing=True, use_cpu=True)
        made = arguments.to_dict()
        options = installed | {name: made[name] for name in made if "checkpointing" in name}
        assert TrainingSpec.model_validate(options).activation_checkpointing is True

    def test_as_the_training_of_a_job(self, installed: dict[str, Any]) -> None:
        assert "output_dir" not in job_spec(training=installed).model_dump()["training"]


class TestByHand:
    """Without a dump round it an option says what its author wants."""

    @pytest.mark.parametrize(
        "options",
        [
            {"output_dir": "/x"},
            {"logging_dir": "/x"},
            {"report_to": ["wandb"]},
            {"save_safetensors": False},
            {"run_name": "x"},
            {"local_rank": 3},
            {"do_eval": True},
            {"accelerator_config": {"unheard_of": None}},
        ],
    )
    def test_is_refused(self, options: dict[str, Any]) -> None:
        assert faults(options) == list(options)

    @pytest.mark.parametrize(
        "options",
        [
            {"logging_dir": "out/runs/Nov22_13-41-52_host-7.example"},
            {"report_to": "none"},
            {"save_safetensors": True},
            {"do_train": True},
            {"fsdp": "", "debug": "", "accelerator_config": {}},
        ],
    )
    def test_a_default_is_ignored(self, options: dict[str, Any]) -> None:
        assert faults(options) == []
        assert ignored_options(options) == list(options)

    def test_the_optimizer_of_4_20_is_adamw(self) -> None:
        assert TrainingSpec.model_validate({"optim": "adamw_hf"}).optim == "adamw_torch"
