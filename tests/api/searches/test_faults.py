"""What is wrong with a search's spec is reported before anything runs."""

from collections.abc import Callable
from copy import deepcopy
from itertools import islice
from pathlib import Path
from typing import Any

import pytest
import yaml

from service.api.faults.collect import Findings as JobFindings
from service.api.faults.collect import collect
from service.api.search_checks.examine import Findings, examine_search
from service.contract.search.spec import SearchSpec
from service.contract.spec.training import TrainingSpec

SEARCH: dict[str, Any] = {
    "job": {
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "hub", "name": "org/data", "validation": "validation"},
        "training": {"max_steps": 90, "eval_strategy": "steps", "eval_steps": 10},
    },
    "space": {"training.learning_rate": {"low": 1e-6, "high": 1e-2, "log": True}},
    "objective": {"metric": "f1"},
}
FAULTS = yaml.safe_load(Path(__file__).with_name("search_faults.yaml").read_text())
RATE, SEED = "training.learning_rate", "training.seed"
CYCLES = "training.lr_scheduler_kwargs.num_cycles"
COSINE = {"training.lr_scheduler_type": ["cosine_with_restarts"]}
LORA = {"method": "lora", "r": 8}


def examined(changes: dict[str, Any], examine: Callable[[Any], JobFindings] = collect) -> Findings:
    """With other sections, those of `job` by `job.<section>`; None: left out."""
    given = deepcopy(SEARCH)
    for name, value in changes.items():
        owner = given["job"] if name.startswith("job.") else given
        key = name.removeprefix("job.")
        if value is None:
            del owner[key]
        else:
            owner[key] = value
    return examine_search(given, examine, lambda _job: [])


def accepted(changes: dict[str, Any]) -> SearchSpec:
    found = examined(changes)
    assert found.faults == []
    assert found.spec is not None
    return found.spec


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    changes = dict(FAULTS[name])
    expected = changes.pop("faults")
    found = examined(changes)
    assert found.spec is None
    assert [f"{each.path} {each.code}: {each.message}" for each in found.faults] == expected


def test_not_an_object() -> None:
    found = examine_search(["job"], collect, lambda _job: [])
    assert [(fault.path, fault.code) for fault in found.faults] == [("", "invalid_type")]


def test_suggested_names_are_whole_paths_and_suggested_values_are_not() -> None:
    refit = {
        "training.max_step": 1,
        "training.eval_strategy": "stepz",
        "hub": {"model": "org/model", "model_id": "org/model"},
    }
    found = examined(
        {"space": {"peft.rank": [4]}, "job.peft": LORA, "best": {"action": "refit", "set": refit}}
    )
    assert {fault.path: fault.suggestion for fault in found.faults} == {
        "best.set.hub.model": "hub.model_id",
        "best.set.training.eval_strategy": "steps",
        "best.set.training.max_step": "training.max_steps",
        "space.peft.rank": "peft.r",
    }


class TestResolved:
    @pytest.mark.parametrize(
        ("space", "types"),
        [
            ({RATE: {"low": 0, "high": 1}}, ["float"]),
            ({"training.per_device_train_batch_size": {"low": 4, "high": 32, "step": 4}}, ["int"]),
            ({SEED: {"low": 1.0, "high": 9.0}}, ["int"]),
            # Of any form: the type of their bounds.
            ({CYCLES: {"low": 1, "high": 3}, **COSINE}, ["int", None]),
            ({CYCLES: {"low": 0.5, "high": 3}, **COSINE}, ["float", None]),
            # Within a chosen section.
            (
                {"peft": [None, LORA], "peft.r": {"low": 4, "high": 8, "when": {"peft": LORA}}},
                [None, "int"],
            ),
            # Of a section of their kind.
            (
                {
                    "peft.method": ["lora", "ia3"],
                    "peft.r": {"choices": [4, 8], "when": {"peft.method": "lora"}},
                    "peft.lora_alpha": {"choices": [8, 16], "when": {"peft.r": 4}},
                },
                [None, None, None],
            ),
            # Of a task by its name alone: the template is checked as trials are made from it.
            ({"task.doc_stride": [128, 400], "task.max_seq_length": [512, 1024]}, [None, None]),
        ],
    )
    def test_ranges_have_the_types_of_their_fields(
        self, space: dict[str, Any], types: list[str | None]
    ) -> None:
        found = accepted({"space": space}).dimensions
        assert found.keys() == space.keys()
        assert [each.type for each in found.values()] == types

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            (
                {"job.training": {"eval_strategy": "epoch"}},
                {
                    RATE: {"low": 1e-5, "high": 1e-4, "log": True, "type": "float"},
                    "training.per_device_train_batch_size": {"choices": [4, 8, 16]},
                    "training.num_train_epochs": {"low": 1, "high": 5, "type": "int"},
                },
            ),
            # Epochs do not vary where steps are given. Adapters have higher rates, and their rank.
            (
                {"job.peft": {"method": "lora"}},
                {
                    RATE: {"low": 1e-5, "high": 1e-3, "log": True, "type": "float"},
                    "training.per_device_train_batch_size": {"choices": [4, 8, 16]},
                    "peft.r": {"choices": [4, 8, 16, 32]},
                },
            ),
        ],
    )
    def test_a_space_that_is_left_out_is_the_tasks(
        self, changes: dict[str, Any], expected: dict[str, Any]
    ) -> None:
        found = accepted({"space": None, **changes}).dimensions
        shown = {path: each.model_dump(exclude_defaults=True) for path, each in found.items()}
        assert shown == expected

    @pytest.mark.parametrize(
        ("changes", "metric", "direction"),
        [
            ({"objective": None}, "f1", "maximize"),
            (
                {
                    "objective": None,
                    "job.dataset": {
                        "source": "hub",
                        "name": "org/data",
                        "validation": {"easy": "a", "hard": "b"},
                    },
                },
                "easy_f1",
                "maximize",
            ),
            (
                {
                    "objective": None,
                    "job.training": {
                        **SEARCH["job"]["training"],
                        "load_best_model_at_end": True,
                        "save_steps": 10,
                        "metric_for_best_model": "exact_match",
                    },
                },
                "exact_match",
                "maximize",
            ),
            ({"objective": {"metric": "eval_loss"}}, "eval_loss", "minimize"),
        ],
    )
    def test_objectives_have_directions_and_those_of_the_task_are_the_default(
        self, changes: dict[str, Any], metric: str, direction: str
    ) -> None:
        (objective,) = accepted(changes).objectives
        assert (objective.metric, objective.direction) == (metric, direction)


class TestFieldsThatDependOnEachOther:
    """Their trials fail one by one, with the job spec's own sentence."""

    @pytest.mark.parametrize(
        "space",
        [
            {"training.bf16": [True, False], "training.fp16": [True, False]},
            {"peft.method": ["lora", "ia3"], "peft.r": [4, 8]},
            {
                "task.doc_stride": {"low": 32, "high": 500},
                "task.max_seq_length": {"low": 128, "high": 512},
            },
        ],
    )
    def test_are_not_a_fault_of_the_search(self, space: dict[str, Any]) -> None:
        assert accepted({"space": space}).dimensions.keys() == space.keys()


class TestWarnings:
    def warned(self, changes: dict[str, Any]) -> list[tuple[str, str]]:
        found = examined(changes)
        assert found.faults == []
        return [(each.path, each.code) for each in found.warnings]

    def test_a_template_outside_of_the_space_is_reported(self) -> None:
        space = {RATE: [1e-3, 1e-4]}
        assert self.warned({"space": space}) == [(f"job.{RATE}", "outside_of_space")]
        assert self.warned({"space": space, "template_trial": False}) == []
        assert self.warned({"space": space, "sampler": "grid"}) == []

    @pytest.mark.parametrize(
        ("changes", "expected"),
        [
            ({"max_trials": 10}, ("sampler.n_startup_trials", "sampler_never_learns")),
            (
                {"max_trials": 5, "pruner": "median", "sampler": "random"},
                ("pruner.n_startup_trials", "pruner_never_prunes"),
            ),
            (
                {"max_trials": 3, "sampler": "grid", "space": {"training.seed": [1, 2, 3, 4]}},
                ("max_trials", "grid_is_cut"),
            ),
            (
                {"objective": "f1", "job.task": "text-classification"},
                ("objective.metric", "metric_depends_on_data"),
            ),
            (
                {
                    "space": {"training.seed": {"low": 1, "high": 99}},
                    "job.dataset": {
                        "source": "hub",
                        "name": "org/data",
                        "validation_split_percentage": 5,
                    },
                },
                ("space.training.seed", "validation_rows_vary"),
            ),
        ],
    )
    def test_what_a_search_will_not_do(
        self, changes: dict[str, Any], expected: tuple[str, str]
    ) -> None:
        assert self.warned(changes) == [expected]


class TestBoundedWork:
    def examinations(self, changes: dict[str, Any]) -> int:
        """How often the server is asked about a job's spec."""
        count = 0

        def examine(job: Any) -> JobFindings:
            nonlocal count
            count += 1
            return collect(job)

        examined(changes, examine)
        return count

    def test_the_server_is_asked_about_models_and_data_only(self) -> None:
        rates = [index * 1e-6 for index in range(500)]
        assert self.examinations({"space": {RATE: rates}}) == 2
        names = [f"org/model-{index}" for index in range(500)]
        assert self.examinations({"space": {"model.name_or_path": names}}) == 202

    def test_conditions_on_all_fields_before_take_no_longer(self) -> None:
        """Each way through the conditions was followed: a billion of them."""
        space: dict[str, Any] = {}
        for name in islice(TrainingSpec.model_fields, 31):
            space[f"training.{name}"] = {"choices": ["?"], "when": dict.fromkeys(space, "?")}
            space[f"training.{name}"] |= {} if len(space) > 1 else {"when": None}
        assert len(examined({"space": space}).faults) > 5

    def test_twenty_faulty_values_of_a_field_are_enough(self) -> None:
        found = examined({"space": {RATE: [f"x{index}" for index in range(1000)]}})
        assert len(found.faults) == 20
