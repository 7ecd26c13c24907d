"""service.contract.spec.splits, and the validation sets of a spec."""

import pytest
from pydantic import ValidationError

from service.contract.spec import splits
from service.contract.spec.spec import JobSpec
from tests.contract.factories import job_spec


def with_sets(**training: object) -> JobSpec:
    named = {"easy": "file-2", "hard": ["file-3", "file-4"]}
    dataset = {"source": "upload", "train": "file-1", "validation": named, "test": "file-5"}
    return job_spec(dataset=dataset, training=training)


class TestGiven:
    def test_one_validation_set(self) -> None:
        dataset = {"source": "upload", "train": "file-1", "validation": "file-2"}
        assert splits.given(job_spec(dataset=dataset).dataset) == {
            "train": ["file-1"],
            "validation": ["file-2"],
        }

    def test_several(self) -> None:
        assert splits.given(with_sets().dataset) == {
            "train": ["file-1"],
            "validation.easy": ["file-2"],
            "validation.hard": ["file-3", "file-4"],
            "test": ["file-5"],
        }

    def test_slices_of_a_hub_split(self) -> None:
        named = {"first": "validation[:50%]", "rest": "validation[50%:]"}
        spec = job_spec(dataset={"source": "hub", "name": "squad", "validation": named})
        assert splits.given(spec.dataset)["validation.rest"] == "validation[50%:]"


@pytest.mark.parametrize(
    ("split", "kind", "name", "place", "prefix"),
    [
        ("train", "train", "train", ("train",), "train/"),
        ("validation", "validation", "", ("validation",), ""),
        ("validation.test", "validation", "test", ("validation", "test"), "validation.test/"),
        ("test", "test", "test", ("test",), "test/"),
    ],
)
def test_names(split: str, kind: str, name: str, place: tuple[str, ...], prefix: str) -> None:
    assert splits.kind(split) == kind
    assert splits.is_validation(split) is (kind == "validation")
    assert splits.validation_name(split) == name
    assert splits.place(split) == place
    assert splits.prefix(split) == prefix


class TestSpec:
    def test_survives_json(self) -> None:
        spec = with_sets(eval_strategy="epoch")
        assert JobSpec.model_validate_json(spec.model_dump_json()) == spec

    @pytest.mark.parametrize("name", ["", "a b", "a/b", "a.b", "x" * 65])
    def test_a_name_is_part_of_a_metrics_name(self, name: str) -> None:
        dataset = {"source": "upload", "train": "file-1", "validation": {name: "file-2"}}
        with pytest.raises(ValidationError):
            job_spec(dataset=dataset)

    def test_no_set_at_all(self) -> None:
        with pytest.raises(ValidationError, match="at least 1 item"):
            job_spec(dataset={"source": "upload", "train": "file-1", "validation": {}})

    @pytest.mark.parametrize(
        "training",
        [
            {"eval_strategy": "epoch", "save_strategy": "best"},
            {"eval_strategy": "steps", "load_best_model_at_end": True},
        ],
    )
    def test_the_best_model_needs_the_name_of_a_metric(self, training: dict[str, object]) -> None:
        with pytest.raises(ValidationError, match=r"name a metric of one of them"):
            with_sets(**training)
        with_sets(**training, metric_for_best_model="easy_loss")
