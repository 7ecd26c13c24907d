"""Names of other tools: the field that is meant is suggested, and nothing is said about a guess."""

from typing import Any

import pytest
from pydantic import BaseModel

from service.api.faults.collect import collect
from service.api.faults.walk import models_in
from service.contract.spec import JobSpec
from service.contract.training_arguments.common_names import COMMON_NAMES
from tests.api.factories import SPEC, spec

Found = list[tuple[str, str | None]]


def suggestions(body: Any) -> Found:
    return [(fault.path, fault.suggestion) for fault in collect(body).faults]


def fields_at(place: str) -> list[str]:
    models: list[type[BaseModel]] = [JobSpec]
    *sections, name = place.split(".")
    for section in sections:
        fields = [model.model_fields[section] for model in models if section in model.model_fields]
        models = [inner for field in fields for inner in models_in(field.annotation)]
    return [name for model in models if name in model.model_fields]


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
