"""Names and forms of other tools: the fault says what is meant, and what it says is accepted."""

from typing import Any

import pytest
import yaml

from service.api.faults.collect import collect
from service.contract.tasks.tasks import TASKS
from service.contract.training_arguments.common_names import COMMON_NAMES, COMMON_TASKS

SPEC: dict[str, Any] = {
    "task": "text-classification",
    "model": {"name_or_path": "org/model"},
    "dataset": {"source": "hub", "name": "org/data"},
}
HUB = SPEC["dataset"]
LORA = {"method": "lora"}
SCRATCH: dict[str, Any] = {"config": {"model_type": "gpt2"}, "tokenizer_name": "gpt2"}


def fault_of(change: dict[str, Any]) -> Any:
    (fault,) = collect(SPEC | change).faults
    return fault


class TestNames:
    @pytest.mark.parametrize(
        ("change", "suggestion", "mended"),
        [
            ({"task": "sequence-classification"}, "text-classification", SPEC),
            ({"task": "SEQ_CLS"}, "text-classification", SPEC),
            ({"task": "NER"}, "token-classification", {"task": "token-classification"}),
            (
                {"dataset": {**HUB, "train_split": "train"}},
                "train",
                {"dataset": {**HUB, "train": "train"}},
            ),
            (
                {"dataset": {**HUB, "text_column": "body"}},
                "dataset.columns",
                {"dataset": {**HUB, "columns": {"text": "body"}}},
            ),
            (
                {"tokenizer": "org/tokenizer"},
                "model.tokenizer_name",
                {"model": {**SPEC["model"], "tokenizer_name": "org/tokenizer"}},
            ),
            (
                {"peft": {**LORA, "load_in_4bit": True}},
                "quantization",
                {"peft": {**LORA, "quantization": {"bits": 4}}, "resources": {"gpus": 1}},
            ),
        ],
    )
    def test_the_suggestion_is_accepted(
        self, change: dict[str, Any], suggestion: str, mended: dict[str, Any]
    ) -> None:
        assert fault_of(change).suggestion == suggestion
        assert collect(SPEC | mended).faults == []

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            (
                {"model": {"source": "hub", "name_or_path": "org/model"}},
                "unknown field; did you mean `name_or_path`? It is given already: remove one of "
                "the two.",
            ),
            (
                {"lora_r": 8},
                "unknown field; did you mean `peft.r`? `peft` also needs `method`.",
            ),
            (
                {"peft": {"method": "ia3", "lora_r": 8}},
                "unknown field; `peft.r` exists for other kinds of `peft`",
            ),
            (
                {"training": {"doc_strid": 64}},
                "unknown field; `task.doc_stride` exists for other kinds of `task`",
            ),
            (
                {"peft": {**LORA, "load_in_8bit": True}},
                "unknown field; did you mean `quantization`? Write `quantization: {bits: 8}`.",
            ),
            (
                {"dataset": {**HUB, "val_set_size": 0.1}},
                "unknown field; did you mean `validation_split_percentage`? Write "
                "`validation_split_percentage: 10`.",
            ),
            (
                {"model_type": "gpt2"},
                "refused: it follows from the model; `model.config.model_type` is for one without "
                "weights",
            ),
            (
                {"learning_rate_multiplier": 2},
                "refused: there is no rate that it would multiply: set `training.learning_rate`",
            ),
        ],
    )
    def test_what_to_do_besides(self, change: dict[str, Any], message: str) -> None:
        (fault,) = [each for each in collect(SPEC | change).faults if each.code != "conflict"]
        assert fault.message == message

    def test_the_source_of_a_model_is_its_name(self) -> None:
        (fault,) = [
            each
            for each in collect(SPEC | {"model": {"source": "org/model"}}).faults
            if each.path == "model.source"
        ]
        assert fault.suggestion == "name_or_path"

    def test_what_needs_no_option(self) -> None:
        fault = fault_of({"peft": {**LORA, "task_type": "SEQ_CLS"}})
        assert fault.message == "refused: it follows from the job's `task`"

    def test_an_option_of_other_tasks(self) -> None:
        fault = fault_of({"training": {"doc_stride": 64}})
        assert fault.message == "this task does not have it; others have it as `task.doc_stride`"
        assert fault.suggestion is None

    def test_every_common_name_has_a_place(self) -> None:
        assert set(COMMON_TASKS.values()) <= set(TASKS)
        assert not set(COMMON_TASKS) & set(TASKS)
        assert list(COMMON_NAMES) == sorted(COMMON_NAMES)


class TestForms:
    @pytest.mark.parametrize(
        ("change", "written"),
        [
            ({"model": "bert-base-uncased"}, "{name_or_path: bert-base-uncased}"),
            ({"dataset": "squad"}, "{source: hub, name: squad}"),
            ({"peft": "LoRA"}, "{method: lora}"),
            (
                {"model": {"config": {**SCRATCH["config"], "config_overrides": "n_embd=10,a=x"}}},
                "{n_embd: 10, a: x}",
            ),
        ],
    )
    def test_a_section_as_text_is_written_out(self, change: dict[str, Any], written: str) -> None:
        fault = next(f for f in collect(SPEC | change).faults if f.code == "invalid_type")
        name = fault.path.rpartition(".")[2]
        assert fault.message == f"must be an object: write `{name}: {written}`"
        if name in SPEC or name == "peft":
            assert collect(SPEC | {name: yaml.safe_load(written)}).faults == []

    def test_a_file_is_uploaded(self) -> None:
        fault = fault_of({"dataset": "./my data.csv"})
        assert fault.message == (
            "must be an object: write `dataset: {source: upload, train: ./my data.csv}`, whose "
            "file `finetune submit` uploads; over HTTP give its id (file-…)"
        )

    def test_a_share_of_the_rows(self) -> None:
        fault = fault_of({"dataset": {**HUB, "validation": 0.2}})
        assert "`dataset.validation_split_percentage: 20`" in fault.message
        fault = fault_of({"dataset": {**HUB, "validation_split_percentage": 0.2}})
        assert fault.message == "must be a whole number of percent: 20 for 0.2"
        assert not collect(SPEC | {"dataset": {**HUB, "validation_split_percentage": 20}}).faults

    def test_quantization_that_is_switched_on(self) -> None:
        fault = fault_of({"peft": {**LORA, "quantization": True}})
        assert fault.message == "must be an object: write `quantization: {bits: 4}`"

    @pytest.mark.parametrize("text", ["x" * 201, "", "\ud800"])
    def test_any_other_text_has_no_hint(self, text: str) -> None:
        assert collect(SPEC | {"model": text}).faults
        assert "write" not in collect(SPEC | {"tracking": text}).faults[0].message
