"""What a request to create a job becomes: the whole spec, or every fault. Without a server."""

from typing import Any

import pytest

from service.api.openai.job_requests import Translation, translate
from service.api.problems.errors import InvalidSpecError
from service.api.schemas.problems import Fault

MODEL = "ft:base:default:support:job-0199a0b1c2d3"
MLFLOW = {"type": "mlflow", "mlflow": {"project": "p", "name": "n"}}
ALL = {"n_epochs": 2, "batch_size": 12, "learning_rate_multiplier": 0.5}
OWN = {
    "num_train_epochs": 2,
    "per_device_train_batch_size": 1,
    "gradient_accumulation_steps": 2,
    "learning_rate": 1e-5,
}


def translated(changes: dict[str, Any]) -> Translation:
    body = {"model": "org/base", "training_file": "file-1", "seed": 5, **changes}
    return translate(body, {"file-1": 1000}.get)


# What was asked, and the sections of the spec that differ from those of a request without it.
SPECS: list[tuple[dict[str, Any], dict[str, Any]]] = [
    ({}, {}),
    ({"peft": None, "suffix": "", "metadata": {}, "integrations": []}, {}),
    (
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 0.3, "n_epochs": "auto"}}}},
        {"task": {"type": "preference", "beta": 0.3}, "training": {"learning_rate": 1e-6}},
    ),
    (
        {"method": {"type": "dpo"}},
        {"task": {"type": "preference"}, "training": {"learning_rate": 1e-6}},
    ),
    ({"peft": {"r": 4}}, {"peft": {"r": 4}, "training": {"learning_rate": 2e-4}}),
    (
        {"method": {"type": "supervised", "supervised": {}}, "hyperparameters": ALL},
        {
            "training": {
                "num_train_epochs": 2,
                "learning_rate": 1e-5,
                "logging_steps": 1,
                "per_device_train_batch_size": 6,
                "gradient_accumulation_steps": 2,
            }
        },
    ),
    (
        {
            "method": {"type": "supervised", "supervised": {"hyperparameters": {"n_epochs": None}}},
            "hyperparameters": {"n_epochs": 4, "batch_size": None},
        },
        {"training": {"num_train_epochs": 4, "learning_rate": 2e-5, "logging_steps": 5}},
    ),
    (
        {"hyperparameters": {"batch_size": 64}},
        {
            "training": {
                "learning_rate": 3e-5,
                "logging_steps": 1,
                "per_device_train_batch_size": 8,
                "gradient_accumulation_steps": 8,
            }
        },
    ),
    (
        {"validation_file": "file-2"},
        {
            "dataset": {"source": "upload", "train": ["file-1"], "validation": ["file-2"]},
            "training": {"eval_strategy": "epoch"},
        },
    ),
    (
        {"dataset": {"validation": ["file-3"]}},
        {
            "dataset": {"source": "upload", "train": ["file-1"], "validation": ["file-3"]},
            "training": {"eval_strategy": "epoch"},
        },
    ),
    (
        {"dataset": {"validation_split_percentage": 5}},
        {
            "dataset": {
                "source": "upload",
                "train": ["file-1"],
                "validation_split_percentage": 5,
            },
            "training": {"eval_strategy": "epoch"},
        },
    ),
    (
        {"suffix": "s", "metadata": {"a": "b"}, "integrations": [{"type": "mlflow"}, MLFLOW]},
        {
            "name": "s",
            "metadata": {"a": "b"},
            "tracking": {"experiment_name": "p", "run_name": "n"},
        },
    ),
    ({"integrations": [{"type": "mlflow"}]}, {"tracking": {}}),
    (
        {"task": "summarization", "training": {"per_device_train_batch_size": 3}},
        {
            "task": "summarization",
            "training": {
                "learning_rate": 5e-5,
                "per_device_train_batch_size": 3,
                "gradient_accumulation_steps": None,
            },
        },
    ),
    (
        {"task": {"type": "preference", "beta": 0.5}},
        {"task": {"type": "preference", "beta": 0.5}, "training": {"learning_rate": 1e-6}},
    ),
    ({"task": {"max_seq_length": 9}}, {"task": {"type": "chat", "max_seq_length": 9}}),
    ({"model": {"job": "job-1"}}, {"model": {"job": "job-1"}}),
    ({"model": MODEL}, {"model": {"job": "job-0199a0b1c2d3"}}),
    (
        {"model": f"{MODEL}:ckpt-step-7"},
        {"model": {"job": "job-0199a0b1c2d3", "checkpoint": 7}},
    ),
    ({"model": "gpt2"}, {"model": {"name_or_path": "gpt2"}}),
    ({"mode": "evaluate"}, {"mode": "evaluate", "training": None}),
    (
        {"training_file": None, "dataset": {"source": "hub", "name": "x"}},
        {
            "dataset": {"source": "hub", "name": "x"},
            # As many epochs, as large a batch as for a file whose examples are not known.
            "training": {"logging_steps": 10, "per_device_train_batch_size": 8},
        },
    ),
]


@pytest.mark.parametrize(("asked", "differences"), SPECS)
def test_the_spec(asked: dict[str, Any], differences: dict[str, Any]) -> None:
    expected: dict[str, Any] = {
        "task": {"type": "chat"},
        "model": {"name_or_path": "org/base"},
        "dataset": {"source": "upload", "train": ["file-1"]},
        "training": {
            "num_train_epochs": 3,
            "learning_rate": 2e-5,
            "seed": 5,
            "logging_steps": 4,
            "include_num_input_tokens_seen": "non_padding",
            "save_strategy": "epoch",
            "save_total_limit": 3,
            "per_device_train_batch_size": 4,
            "gradient_accumulation_steps": 1,
        },
    }
    for section, value in differences.items():
        is_partial = section == "training" and value is not None
        expected[section] = {**expected["training"], **value} if is_partial else value
    expected = {k: _without_nulls(v) for k, v in expected.items() if v is not None}
    assert translated(asked).spec == expected


def _without_nulls(section: Any) -> Any:
    if not isinstance(section, dict):
        return section
    return {name: value for name, value in section.items() if value is not None}


# What was asked, and each fault: path, code, what its message holds, the value given.
FAULTS: list[tuple[dict[str, Any], list[tuple[str, str, str, Any]]]] = [
    (
        {"hyperparameters": {"n_epoch": 1}},
        [("hyperparameters.n_epoch", "unknown_field", "`n_epochs`", 1)],
    ),
    ({"sufix": "x"}, [("sufix", "unknown_field", "`suffix`", "x")]),
    ({"prioritty": 1}, [("prioritty", "unknown_field", "`priority`", 1)]),
    ({"zzzz": []}, [("zzzz", "unknown_field", "", "array of 0")]),
    (
        {"method": {"typ": 1, "supervise": 2}},
        [
            ("method.type", "missing_field", "", None),
            ("method.typ", "unknown_field", "`type`", 1),
            ("method.supervise", "unknown_field", "`supervised`", 2),
        ],
    ),
    (
        {"method": {"type": "dpo", "dpo": {"hyperparameter": {}}}},
        [
            (
                "method.dpo.hyperparameter",
                "unknown_field",
                "`hyperparameters`",
                "object with 0 fields",
            )
        ],
    ),
    (
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {"bet": 1}}}},
        [("method.dpo.hyperparameters.bet", "unknown_field", "`beta`", 1)],
    ),
    (
        {"integrations": [{"type": "mlflow", "mlflow": {"projec": "a"}}]},
        [("integrations.0.mlflow.projec", "unknown_field", "`project`", "a")],
    ),
    (
        {"integrations": [{"typ": "x", "mlflo": {}}]},
        [
            ("integrations.0.type", "missing_field", "", None),
            ("integrations.0.typ", "unknown_field", "`type`", "x"),
            ("integrations.0.mlflo", "unknown_field", "`mlflow`", "object with 0 fields"),
        ],
    ),
    (
        {"model": 3, "seed": -1},
        [
            ("model", "invalid_value", "text", 3),
            ("model", "invalid_value", "object", 3),
            ("seed", "invalid_value", "0", -1),
        ],
    ),
    (
        {"method": {"type": "reinforcement"}},
        [("method.type", "unsupported_option", "`dpo`", "reinforcement")],
    ),
    (
        {
            "method": {"type": "reinforcement"},
            "hyperparameters": {"n_epochs": 2, "batch_size": None},
            "training": OWN,
        },
        [
            ("method.type", "unsupported_option", "`dpo`", "reinforcement"),
            ("hyperparameters.n_epochs", "conflict", "`training.num_train_epochs`", None),
        ],
    ),
    (
        {"integrations": [{"type": "mlflow"}, {"type": "wandb"}]},
        [("integrations.1.type", "unsupported_option", "`wandb`", "wandb")],
    ),
    ({"training_file": None}, [("training_file", "missing_field", "", None)]),
    (
        {"model": "o3-mini"},
        [
            (
                "model",
                "unsupported_option",
                "OpenAI does not publish the weights of this model. Name a model of the Hugging "
                "Face Hub, such as `HuggingFaceTB/SmolLM2-135M-Instruct`",
                "o3-mini",
            )
        ],
    ),
    (
        {"method": {"type": "dpo", "supervised": {}}},
        [("method.supervised", "conflict", "`method.type: dpo`", None)],
    ),
    (
        {
            "hyperparameters": {"n_epochs": 1, "batch_size": 2},
            "method": {
                "type": "supervised",
                "supervised": {"hyperparameters": {"n_epochs": 3, "batch_size": 2}},
            },
        },
        [
            (
                "hyperparameters.n_epochs",
                "conflict",
                "`method.supervised.hyperparameters.n_epochs`",
                None,
            )
        ],
    ),
    (
        {"validation_file": "file-2", "dataset": {"source": "hub", "name": "a"}},
        [
            ("training_file", "conflict", "`dataset.source`", None),
            ("validation_file", "conflict", "`dataset.source`", None),
        ],
    ),
    (
        {
            "validation_file": "v",
            "suffix": "s",
            "dataset": {"source": "upload", "train": ["x"], "validation": ["y"]},
            "name": "n",
            "training": {"seed": 1},
        },
        [
            ("training_file", "conflict", "`dataset.train`", None),
            ("validation_file", "conflict", "`dataset.validation`", None),
            ("suffix", "conflict", "`name`", None),
            ("seed", "conflict", "`training.seed`", None),
        ],
    ),
    (
        {"hyperparameters": ALL, "training": OWN},
        [
            ("hyperparameters.n_epochs", "conflict", "`training.num_train_epochs`", None),
            (
                "hyperparameters.batch_size",
                "conflict",
                "`training.per_device_train_batch_size`",
                None,
            ),
            (
                "hyperparameters.batch_size",
                "conflict",
                "`training.gradient_accumulation_steps`",
                None,
            ),
            (
                "hyperparameters.learning_rate_multiplier",
                "conflict",
                "`training.learning_rate`",
                None,
            ),
        ],
    ),
    (
        {
            "method": {"type": "dpo", "dpo": {"hyperparameters": {"beta": 1}}},
            "task": {"type": "chat", "beta": 2},
        },
        [
            ("method.dpo.hyperparameters.beta", "conflict", "`task.beta`", None),
            ("method.type", "conflict", "`task`", None),
        ],
    ),
]


@pytest.mark.parametrize(("asked", "faults"), FAULTS)
def test_the_faults(asked: dict[str, Any], faults: list[tuple[str, str, str, Any]]) -> None:
    with pytest.raises(InvalidSpecError) as raised:
        translated(asked)
    found = raised.value.extra["errors"]
    assert [(each["path"], each["code"], each["given"]) for each in found] == [
        (path, code, given) for path, code, _, given in faults
    ]
    assert [
        hint in each["message"] for each, (_, _, hint, _) in zip(found, faults, strict=True)
    ] == ([True] * len(faults))


def test_a_body_that_is_not_an_object() -> None:
    with pytest.raises(InvalidSpecError) as raised:
        translate([], len)
    (fault,) = raised.value.extra["errors"]
    assert (fault["path"], fault["code"]) == ("", "invalid_type")


# The place in the spec that is wrong, and the parameter that is named instead.
PLACES = [
    ({}, "model.name_or_path", "model"),
    ({}, "model.checkpoint.x", "model"),
    ({}, "model.job", "model"),
    ({}, "model.jobs", "model.jobs"),
    ({}, "dataset.train[0]", "dataset.train[0]"),
    ({}, "dataset.train.0", "training_file"),
    ({}, "dataset.validation", "validation_file"),
    ({}, "training.seed", "seed"),
    ({}, "name", "suffix"),
    ({}, "training.num_train_epochs", "hyperparameters.n_epochs"),
    ({}, "training.per_device_train_batch_size", "hyperparameters.batch_size"),
    ({}, "training.gradient_accumulation_steps", "hyperparameters.batch_size"),
    ({}, "training.learning_rate", "hyperparameters.learning_rate_multiplier"),
    ({}, "task.beta", "hyperparameters.beta"),
    (
        {"method": {"type": "dpo", "dpo": {"hyperparameters": {}}}},
        "task.beta",
        "method.dpo.hyperparameters.beta",
    ),
    ({"method": {"type": "dpo", "dpo": {}}}, "task.beta", "hyperparameters.beta"),
    # What the request names in the words of the spec keeps its name.
    ({"training": {"learning_rate": 1}}, "training.learning_rate", "training.learning_rate"),
    ({"model": {"name_or_path": "a"}}, "model.name_or_path", "model.name_or_path"),
    ({"model": {"name_or_path": "a"}}, "name", "suffix"),
]


@pytest.mark.parametrize(("asked", "place", "param"), PLACES)
def test_a_fault_of_the_spec_names_the_parameter(
    asked: dict[str, Any], place: str, param: str
) -> None:
    fault = Fault(path=place, code="invalid_value", message="wrong")
    named = translated(asked).in_words_of_request(fault)
    assert named == Fault(path=param, code="invalid_value", message="wrong")
