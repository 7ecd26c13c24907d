"""What is wrong with a search's spec is said before anything runs."""

from copy import deepcopy
from itertools import islice
from typing import Any

import pytest

from service.api.faults.collect import Findings as JobFindings
from service.api.faults.collect import collect
from service.api.search_checks.examine import Findings, examine_search
from service.contract.search.spec import SearchSpec
from service.contract.training import TrainingSpec
from tests.api import search_section_faults, search_space_faults
from tests.api.search_space_faults import COSINE, RATE, SEARCH

FAULTS = search_space_faults.CASES | search_section_faults.CASES


def examined(changes: dict[str, Any]) -> Findings:
    """With other sections, those of `job` by `job.<section>`; None: left out."""
    given = deepcopy(SEARCH)
    for name, value in changes.items():
        owner = given["job"] if name.startswith("job.") else given
        key = name.removeprefix("job.")
        if value is None:
            del owner[key]
        else:
            owner[key] = value
    return examine_search(given, collect, lambda _job: [])


def accepted(changes: dict[str, Any]) -> SearchSpec:
    found = examined(changes)
    assert found.faults == []
    assert found.spec is not None
    return found.spec


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    changes, *expected = FAULTS[name]
    found = examined(changes)
    assert found.spec is None
    assert [(fault.path, fault.code, fault.message) for fault in found.faults] == expected


def test_no_template() -> None:
    assert [(f.path, f.code) for f in examined({"job": None}).faults] == [("job", "missing_field")]


def test_not_an_object() -> None:
    found = examine_search(["job"], collect, lambda _job: [])
    assert [(fault.path, fault.code) for fault in found.faults] == [("", "invalid_type")]


class TestResolved:
    def test_ranges_of_whole_numbers_are_as_their_fields(self) -> None:
        spec = accepted(
            {
                "space": {
                    RATE: {"low": 0, "high": 1},
                    "training.per_device_train_batch_size": {"low": 4, "high": 32, "step": 4},
                }
            }
        )
        assert [each.type for each in spec.dimensions.values()] == ["float", "int"]

    def test_a_space_that_is_left_out_is_the_tasks(self) -> None:
        spec = accepted({"space": None, "job.training": {"eval_strategy": "epoch"}})
        found = spec.dimensions
        assert (found[RATE].low, found[RATE].high, found[RATE].log) == (1e-5, 1e-4, True)
        assert found["training.per_device_train_batch_size"].choices == [4, 8, 16]
        epochs = found["training.num_train_epochs"]
        assert (epochs.low, epochs.high) == (1, 5)

    def test_epochs_do_not_vary_where_steps_are_given(self) -> None:
        assert "training.num_train_epochs" not in accepted({"space": None}).dimensions

    def test_adapters_have_higher_rates_and_their_rank(self) -> None:
        found = accepted({"space": None, "job.peft": {"method": "lora"}}).dimensions
        assert (found[RATE].low, found[RATE].high) == (1e-5, 1e-3)
        assert found["peft.r"].choices == [4, 8, 16, 32]

    def test_an_objective_that_is_left_out_is_the_tasks(self) -> None:
        (objective,) = accepted({"objective": None}).objectives
        assert (objective.metric, objective.direction) == ("f1", "maximize")

    def test_or_the_metric_for_the_best_model(self) -> None:
        training = {
            **SEARCH["job"]["training"],
            "load_best_model_at_end": True,
            "save_steps": 10,
            "metric_for_best_model": "exact_match",
        }
        (objective,) = accepted({"objective": None, "job.training": training}).objectives
        assert (objective.metric, objective.direction) == ("exact_match", "maximize")

    def test_losses_are_minimized(self) -> None:
        (objective,) = accepted({"objective": {"metric": "eval_loss"}}).objectives
        assert (objective.key, objective.direction) == ("eval_loss", "minimize")

    def test_fields_within_a_chosen_section(self) -> None:
        lora = {"method": "lora", "r": 8}
        spec = accepted(
            {
                "space": {
                    "peft": [None, lora],
                    "peft.r": {"low": 4, "high": 8, "when": {"peft": lora}},
                }
            }
        )
        assert spec.dimensions["peft.r"].type == "int"

    def test_whole_numbers_with_a_point_are_those_of_an_integer_field(self) -> None:
        spec = accepted({"space": {"training.seed": {"low": 1.0, "high": 9.0}}})
        assert spec.dimensions["training.seed"].type == "int"

    def test_fields_of_any_form_have_the_type_of_their_bounds(self) -> None:
        field = "training.lr_scheduler_kwargs.num_cycles"
        space = {field: {"low": 1, "high": 3}, "training.lr_scheduler_type": [COSINE]}
        assert accepted({"space": space}).dimensions[field].type == "int"
        space[field] = {"low": 0.5, "high": 3}
        assert accepted({"space": space}).dimensions[field].type == "float"

    def test_a_task_by_its_name_alone_has_fields(self) -> None:
        """The template is checked as trials are made from it, not as it was written."""
        space = {"task.doc_stride": [128, 400], "task.max_seq_length": [512, 1024]}
        assert accepted({"space": space}).dimensions.keys() == space.keys()

    def test_fields_whose_section_is_of_their_kind(self) -> None:
        space = {
            "peft.method": ["lora", "ia3"],
            "peft.r": {"choices": [4, 8], "when": {"peft.method": "lora"}},
        }
        assert accepted({"space": space}).dimensions.keys() == space.keys()


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
    def test_are_no_fault_of_the_search(self, space: dict[str, Any]) -> None:
        assert accepted({"space": space}).dimensions.keys() == space.keys()


class TestWarnings:
    def warned(self, changes: dict[str, Any]) -> list[tuple[str, str]]:
        found = examined(changes)
        assert found.faults == []
        return [(each.path, each.code) for each in found.warnings]

    def test_a_template_outside_of_the_space_is_told(self) -> None:
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
        given = {**deepcopy(SEARCH), **changes}
        count = 0

        def examine(job: Any) -> JobFindings:
            nonlocal count
            count += 1
            return collect(job)

        examine_search(given, examine, lambda _job: [])
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
