"""service.contract.spec.modes: what jobs need that do not train."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.spec import splits
from service.contract.spec.spec import JobSpec
from tests.contract.factories import job_spec

FILES = {"source": "upload", "validation": "file-2", "test": "file-3"}


def spec(mode: str, **sections: Any) -> JobSpec:
    return job_spec(mode=mode, **({"dataset": FILES} | sections))


def refusal(mode: str, **sections: Any) -> str:
    with pytest.raises(ValidationError) as caught:
        spec(mode, **sections)
    return str(caught.value)


def test_jobs_train_unless_they_say_otherwise() -> None:
    body = spec("train", dataset={**FILES, "train": "file-1"}).model_dump()
    del body["mode"]  # as stored by an earlier release
    assert JobSpec.model_validate(body).trains


@pytest.mark.parametrize(
    ("mode", "used"),
    [
        ("train", ["train", "validation", "test"]),
        ("evaluate", ["validation", "test"]),
        ("predict", ["test"]),
    ],
)
def test_each_mode_reads_its_own_splits(mode: str, used: list[str]) -> None:
    files = {**FILES, "train": "file-1"}
    assert list(splits.used(spec(mode, dataset=files))) == used
    hub = {"source": "hub", "name": "squad", "validation": "validation", "test": "test"}
    assert list(splits.used(spec(mode, dataset=hub))) == used


def test_only_files_that_are_read_belong_to_the_job() -> None:
    files = {**FILES, "train": "file-1"}
    assert splits.items(spec("evaluate", dataset=files)) == ["file-2", "file-3"]
    assert splits.items(spec("predict", dataset=files)) == ["file-3"]


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
@pytest.mark.parametrize("dataset", [FILES, {**FILES, "source": "path"}])
def test_training_rows_may_be_left_out(mode: str, dataset: dict[str, str]) -> None:
    assert spec(mode, dataset=dataset).dataset.train is None
    again = spec(mode, dataset=dataset).model_dump_json()
    assert JobSpec.model_validate_json(again).dataset.train is None


def test_a_training_needs_rows() -> None:
    with pytest.raises(ValidationError) as caught:
        spec("train")
    assert [(e["type"], e["loc"]) for e in caught.value.errors()] == [
        ("missing", ("dataset", "upload", "train"))
    ]
    assert "`dataset.train` is required" in refusal("train", dataset={**FILES, "train": None})


@pytest.mark.parametrize(
    ("mode", "sections", "sentence"),
    [
        ("evaluate", {"dataset": {"source": "upload"}}, "`dataset.validation` is required, or"),
        ("predict", {"dataset": {"source": "upload"}}, "`dataset.test` is required"),
        (
            "evaluate",
            {"dataset": {"source": "upload", "validation_split_percentage": 5}},
            "is a share of `dataset.train`",
        ),
        ("evaluate", {"hub": {"model_id": "me/it"}}, "`hub` pushes a trained model"),
        (
            "evaluate",
            {"tracking": {"register_as": "squad"}},
            "`tracking.register_as` registers a trained model",
        ),
        (
            "evaluate",
            {"tracking": {"tensorboard": True}},
            "`tracking.tensorboard` writes the metrics of training steps",
        ),
        ("predict", {"peft": {"method": "lora"}}, "`peft` describes an adapter to train"),
        (
            "predict",
            {"model": {"config": {"model_type": "bert"}, "tokenizer_name": "org/model"}},
            "`model.config` creates a model with random weights",
        ),
    ],
)
def test_what_a_mode_lacks_or_has_no_use_for(
    mode: str, sections: dict[str, Any], sentence: str
) -> None:
    assert sentence in refusal(mode, **sections)


@pytest.mark.parametrize("mode", ["evaluate", "predict"])
def test_options_of_trainings_are_ignored(mode: str) -> None:
    training = {
        "max_steps": 100,
        "num_train_epochs": 5,
        "eval_strategy": "steps",
        "save_strategy": "steps",
        "load_best_model_at_end": True,
        "label_smoothing_factor": 0.1,
    }
    named = {"easy": "file-2", "hard": "file-4"}
    spec(mode, training=training)
    spec(mode, training=training, dataset={**FILES, "validation": named})
