"""The sections of a search, their rules, and the values of its space."""

from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.fields.section import BrokenRulesError
from service.contract.search import defaults
from service.contract.search.objectives import Objective
from service.contract.search.rules import MOST_CONDITIONS
from service.contract.search.space import (
    MOST_CHOICES_IN_ALL,
    Dimension,
    among,
    in_order,
    value_at,
    with_values,
)
from service.contract.search.spec import SearchSpec
from service.contract.spec.spec import JobSpec
from service.contract.tasks.tasks import TASKS
from tests.contract.factories import job_spec, spec_body

RATE, OPTIM, SCHEDULE = (
    "training.learning_rate",
    "training.optim",
    "training.lr_scheduler_type",
)
JOB = spec_body(dataset={"source": "hub", "name": "org/data", "validation": "validation"})


def search(**changes: Any) -> SearchSpec:
    return SearchSpec.model_validate({"job": JOB, **changes})


def broken(**changes: Any) -> list[str]:
    """The sentences of the broken rules."""
    with pytest.raises(ValidationError) as raised:
        search(**changes)
    sentences: list[str] = []
    for error in raised.value.errors():
        cause = error["ctx"]["error"]
        assert isinstance(cause, BrokenRulesError)
        sentences += cause.sentences
    return sentences


class TestShortForms:
    def test_names_alone_have_the_defaults(self) -> None:
        found = search(sampler="random", pruner="median", objective="f1", best="refit")
        assert (found.sampler.name, found.pruner.name) == ("random", "median")
        assert (found.objectives, found.best.action) == ([Objective(metric="f1")], "refit")

    def test_a_list_is_choices(self) -> None:
        assert search(space={RATE: [1e-5, 1e-4]}).dimensions[RATE].choices == [1e-5, 1e-4]

    def test_they_are_the_same_as_the_long_ones(self) -> None:
        found = search(sampler="tpe", objective={"metric": "f1"}, space={RATE: [1e-5]})
        assert SearchSpec.model_validate(found.model_dump()) == found


class TestDimension:
    @pytest.mark.parametrize(
        ("given", "sentence"),
        [
            ({}, "give `low` and `high`, or `choices`"),
            ({"low": 1}, "give `low` and `high`, or `choices`"),
            (
                {"choices": [1], "low": 1},
                "`choices` are values one by one: leave out `low`, `high`, `step` and `log`",
            ),
            ({"low": 2, "high": 1}, "`low` is 2, more than `high`, 1: the range is empty"),
            (
                {"low": 0.0, "high": 1, "log": True},
                "`log` needs a `low` above 0, and `low` is 0.0: zero has no logarithm",
            ),
            (
                {"low": 1, "high": 9, "log": True, "step": 2},
                "`log` and `step` cannot be combined: leave one of them out, or list `choices`",
            ),
            (
                {"low": 1.5, "high": 9, "type": "int"},
                "`low` is 1.5, but the values are integers",
            ),
            ({"choices": [1, {"a": 1}, {"a": 1}]}, '`choices` has {"a": 1} twice'),
        ],
    )
    def test_rules(self, given: dict[str, Any], sentence: str) -> None:
        assert broken(space={RATE: given}) == [sentence]

    @pytest.mark.parametrize(
        ("given", "size"),
        [
            ({"low": 1, "high": 10}, 10),
            ({"low": 1, "high": 10, "step": 4}, 3),
            ({"low": 0.1, "high": 0.5, "step": 0.1}, 5),
            ({"low": 0.1, "high": 0.5}, float("inf")),
            ({"low": 1, "high": 2, "type": "float"}, float("inf")),
            ({"choices": [1, 2, None]}, 3),
        ],
    )
    def test_size(self, given: dict[str, Any], size: float) -> None:
        assert Dimension.model_validate(given).size() == size

    @pytest.mark.parametrize(
        ("given", "held", "not_held"),
        [
            ({"low": 4, "high": 16, "step": 4}, [4, 8, 16, 8.0], [6, 0, 20, True, "8", None]),
            ({"low": 0.0, "high": 1.0}, [0, 0.5, 1], [1.01, float("nan"), True]),
            ({"choices": [1, "a", None]}, [1, 1.0, "a", None], [True, "b"]),
            ({"choices": [True, 1]}, [True, 1], [False, 0]),
        ],
    )
    def test_holds(self, given: dict[str, Any], held: list[Any], not_held: list[Any]) -> None:
        dimension = Dimension.model_validate(given)
        assert [dimension.holds(value) for value in held] == [True] * len(held)
        assert [dimension.holds(value) for value in not_held] == [False] * len(not_held)


def test_among_finds_a_value_behind_an_equal_one_of_another_type() -> None:
    assert among(True, [1, True])
    assert not among(True, [1, 0])


class TestConditions:
    def test_fields_come_after_those_that_they_depend_on(self) -> None:
        space = {
            RATE: {"low": 1e-5, "high": 1e-3, "when": {OPTIM: "sgd"}},
            SCHEDULE: ["linear"],
            OPTIM: ["sgd", "rmsprop"],
        }
        assert in_order(search(space=space).dimensions) == [SCHEDULE, OPTIM, RATE]

    def test_conditions_of_a_parent_hold_for_its_children(self) -> None:
        space = {
            OPTIM: ["sgd", "rmsprop"],
            SCHEDULE: {"choices": ["linear", "cosine"], "when": {OPTIM: "sgd"}},
            RATE: {"choices": [1e-5], "when": {OPTIM: "rmsprop", SCHEDULE: "linear"}},
        }
        assert broken(space=space) == [
            f"`space.{RATE}.when` can never be met: it needs `{OPTIM}` to be 'rmsprop', and by way "
            "of its other conditions 'sgd'"
        ]

    def test_values_that_they_share_are_enough(self) -> None:
        space = {
            OPTIM: ["sgd", "rmsprop", "adagrad"],
            SCHEDULE: {"choices": ["linear"], "when": {OPTIM: ["sgd", "rmsprop"]}},
            RATE: {"choices": [1e-5], "when": {OPTIM: ["rmsprop", "adagrad"], SCHEDULE: "linear"}},
        }
        assert search(space=space).dimensions.keys() == space.keys()

    def test_there_are_few(self) -> None:
        values = list(range(MOST_CONDITIONS // 2 + 1))
        fields = {
            path: {"choices": [1], "when": {"training.seed": values}} for path in (RATE, OPTIM)
        }
        assert broken(space={"training.seed": values, **fields}) == [
            "the `when` of all fields in `space` may name 500 values in all"
        ]


class TestBoundedWork:
    def test_choices_are_few(self) -> None:
        choices = list(range(1000))
        space = dict.fromkeys(("training.seed", "training.data_seed", RATE), choices)
        assert broken(space=space) == [
            f"`space` has 3,000 `choices` in all; it may have {MOST_CHOICES_IN_ALL:,}"
        ]

    def test_a_hundred_unknown_names_are_enough(self) -> None:
        enqueue = [{f"training.x{index}": 1 for index in range(64)} for _ in range(5)]
        assert len(broken(space={RATE: [1e-5]}, enqueue=enqueue)) == 100


class TestObjective:
    @pytest.mark.parametrize(
        ("metric", "key", "goal"),
        [
            ("f1", "eval_f1", "maximize"),
            ("eval_loss", "eval_loss", "minimize"),
            ("easy_loss", "eval_easy_loss", "minimize"),
            ("perplexity", "eval_perplexity", "minimize"),
            ("kl", "eval_kl", "minimize"),
            ("easy_rewards/rejected", "eval_easy_rewards/rejected", "minimize"),
        ],
    )
    def test_key_and_goal(self, metric: str, key: str, goal: str) -> None:
        objective = Objective(metric=metric)
        assert (objective.key, objective.goal) == (key, goal)

    def test_is_better(self) -> None:
        assert Objective(metric="f1").is_better(2.0, 1.0)
        assert Objective(metric="loss").is_better(1.0, 2.0)


class TestValuesByPath:
    def test_sections_are_added_and_the_template_stays(self) -> None:
        template: dict[str, Any] = {"training": {"seed": 1}}
        made = with_values(template, {RATE: 1e-5, "peft.r": 4})
        assert made == {"training": {"seed": 1, "learning_rate": 1e-5}, "peft": {"r": 4}}
        assert template == {"training": {"seed": 1}}

    def test_a_choice_that_is_a_section_stays(self) -> None:
        lora = {"method": "lora"}
        made = with_values({}, {"peft": lora, "peft.r": 4})
        assert (made["peft"], lora) == ({"method": "lora", "r": 4}, {"method": "lora"})

    def test_value_at(self) -> None:
        assert value_at({"training": {"seed": 1}}, "training.seed") == 1
        assert value_at({"training": None}, "training.seed") is None


class TestDefaultSpace:
    @pytest.mark.parametrize("task", list(TASKS))
    def test_every_task_has_one_that_its_spec_takes(self, task: str) -> None:
        job = job_spec(task=task)
        found = defaults.space(job)
        assert found.keys() == {
            RATE,
            "training.per_device_train_batch_size",
            "training.num_train_epochs",
        }
        self.check(job, found)

    @pytest.mark.parametrize("method", ["lora", "ia3", "prompt-tuning", "prefix-tuning"])
    def test_adapters(self, method: str) -> None:
        extra = {"num_virtual_tokens": 8} if "tuning" in method else {}
        job = job_spec(task="causal-lm", peft={"method": method, **extra})
        found = defaults.space(job)
        assert ("peft.r" in found) == (method == "lora")
        assert (found[RATE].low or 0) >= 1e-5
        self.check(job, found)

    def test_batches_stay_within_their_bound(self) -> None:
        job = job_spec(training={"per_device_train_batch_size": 1_000_000})
        self.check(job, defaults.space(job))

    def check(self, job: JobSpec, space: dict[str, Dimension]) -> None:
        """Every end of the space, together, makes a valid job."""
        given = job.model_dump(mode="json", exclude_unset=True)
        for last in (False, True):
            values = {path: self.end(dimension, last=last) for path, dimension in space.items()}
            JobSpec.model_validate(with_values(given, values))

    def end(self, dimension: Dimension, *, last: bool) -> Any:
        if dimension.choices is not None:
            return dimension.choices[-1 if last else 0]
        return dimension.high if last else dimension.low


def test_every_option_is_described() -> None:
    schema = SearchSpec.model_json_schema()
    own = {"SearchSpec": schema} | {
        name: section
        for name, section in schema["$defs"].items()
        if name in ("Dimension", "Objective") or name.endswith(("Sampler", "Pruner", "Best"))
    }
    assert len(own) == 17
    undescribed = [
        f"{name}.{option}"
        for name, section in own.items()
        for option, field in section["properties"].items()
        if "description" not in field and "const" not in field
    ]
    assert undescribed == []
    assert [name for name, section in own.items() if "description" not in section] == []
