"""What is wrong with a search's spec is said before anything runs."""

from copy import deepcopy
from typing import Any

import pytest

from service.api.faults.collect import collect
from service.api.search_checks.examine import Findings, examine_search
from service.contract.search.spec import SearchSpec

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
RATE = "training.learning_rate"
OPTIM, BETA = "training.optim", "training.adam_beta1"


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


FAULTS: dict[str, tuple[dict[str, Any], list[tuple[str, str, str]]]] = {
    "unknown path": (
        {"space": {"training.learningrate": {"low": 1e-6, "high": 1e-3}}},
        [
            (
                "space.training.learningrate",
                "unknown_field",
                "the job spec has no such field; did you mean `training.learning_rate`?",
            )
        ],
    ),
    "path without its section": (
        {"space": {"learning_rate": {"low": 1e-6, "high": 1e-3}}},
        [
            (
                "space.learning_rate",
                "unknown_field",
                "the job spec has no such field; did you mean `training.learning_rate`?",
            )
        ],
    ),
    "another tool's name": (
        {"space": {"lora_r": [4, 8]}},
        [
            (
                "space.lora_r",
                "unknown_field",
                "the job spec has no such field; did you mean `peft.r`?",
            )
        ],
    ),
    "empty range": (
        {"space": {RATE: {"low": 1e-2, "high": 1e-3}}},
        [
            (
                f"space.{RATE}.low",
                "conflict",
                "`low` is 0.01, more than `high`, 0.001: the range is empty",
            )
        ],
    ),
    "log of zero": (
        {"space": {RATE: {"low": 0, "high": 1e-3, "log": True}}},
        [
            (
                f"space.{RATE}.log",
                "conflict",
                "`log` needs a `low` above 0, and `low` is 0: zero has no logarithm",
            )
        ],
    ),
    "choice of a wrong type": (
        {"space": {"training.per_device_train_batch_size": [8, "large"]}},
        [
            (
                "space.training.per_device_train_batch_size.choices.1",
                "invalid_type",
                "must be a whole number",
            )
        ],
    ),
    "fraction of an integer": (
        {"space": {"training.per_device_train_batch_size": {"low": 1.5, "high": 8}}},
        [
            (
                "space.training.per_device_train_batch_size.low",
                "invalid_type",
                "must be a whole number",
            )
        ],
    ),
    "out of the field's bounds": (
        {"space": {"training.adam_beta1": {"low": 0.5, "high": 1.5}}},
        [("space.training.adam_beta1.high", "invalid_value", "must be at least 0 and below 1")],
    ),
    "condition on a field that is not there": (
        {
            "space": {
                OPTIM: ["adamw_torch"],
                BETA: {"low": 0.8, "high": 0.9, "when": {"training.optimm": "adamw_torch"}},
            }
        },
        [
            (
                f"space.{BETA}.when",
                "conflict",
                f"`space.{BETA}.when` names `training.optimm`, which `space` does not have; did "
                "you mean `training.optim`?",
            )
        ],
    ),
    "condition that no choice meets": (
        {
            "space": {
                OPTIM: ["adamw_torch"],
                BETA: {"low": 0.8, "high": 0.9, "when": {OPTIM: "sgd"}},
            }
        },
        [
            (
                f"space.{BETA}.when",
                "conflict",
                f"`space.{BETA}.when` needs `training.optim` to be 'sgd', which is not one of its "
                "`choices`",
            )
        ],
    ),
    "conditions in a circle": (
        {
            "space": {
                OPTIM: {"choices": ["sgd"], "when": {"training.lr_scheduler_type": "linear"}},
                "training.lr_scheduler_type": {"choices": ["linear"], "when": {OPTIM: "sgd"}},
            }
        },
        [
            (
                f"space.{path}.when",
                "conflict",
                f"`space.{path}.when` depends on itself, by way of other conditions",
            )
            for path in ("training.lr_scheduler_type", OPTIM)
        ],
    ),
    "overlapping paths": (
        {"space": {"peft": [None, {"method": "lora"}], "peft.r": [4, 8]}},
        [
            (
                "space.peft.r",
                "conflict",
                "`space.peft.r` lies within `space.peft`: name `peft` in its `when`, so that it is "
                "clear for which choices it varies",
            )
        ],
    ),
    "grid of a million": (
        {
            "sampler": "grid",
            "space": {
                RATE: {"low": 0.001, "high": 1, "step": 0.001},
                "training.seed": {"low": 0, "high": 999},
            },
        },
        [
            (
                "space",
                "conflict",
                "`space` has 1,000,000 combinations, and `sampler` `grid` tries at most 100,000: "
                "use larger steps or fewer choices, or `sampler` `qmc`, which spreads any number "
                "of trials evenly",
            )
        ],
    ),
    "grid without end": (
        {"sampler": "grid"},
        [
            (
                f"space.{RATE}",
                "conflict",
                f"`space.{RATE}` has no end of values, and `sampler` `grid` tries each one: give "
                "it a `step`, or list `choices`",
            )
        ],
    ),
    "metric that is not reported": (
        {"objective": {"metric": "exactmatch"}},
        [
            (
                "objective.metric",
                "unknown_metric",
                "`objective.metric` is `exactmatch`, which the evaluation does not report; it "
                "reports `loss`, `exact_match`, `f1`; did you mean `exact_match`?",
            )
        ],
    ),
    "metric of one of several validation sets": (
        {
            "objective": {"metric": "f1"},
            "job.dataset": {
                "source": "hub",
                "name": "org/data",
                "validation": {"easy": "a", "hard": "b"},
            },
        },
        [
            (
                "objective.metric",
                "unknown_metric",
                "`objective.metric` is `f1`, which the evaluation does not report; it reports "
                "`easy_loss`, `easy_exact_match`, `easy_f1`, `hard_loss`, `hard_exact_match`, "
                "`hard_f1`",
            )
        ],
    ),
    "sampler": (
        {"sampler": {"name": "tpee"}},
        [
            (
                "sampler.name",
                "invalid_value",
                "must be `tpe` or `random` or `grid` or `cmaes` or `qmc` or `gp` or `nsgaii`; did "
                "you mean `tpe`?",
            )
        ],
    ),
    "option of a sampler": (
        {"sampler": {"name": "tpe", "n_startup": 3}},
        [
            (
                "sampler.n_startup",
                "unknown_field",
                "unknown field; did you mean `n_startup_trials`?",
            )
        ],
    ),
    "options that exclude each other": (
        {"pruner": {"name": "asha", "rungs": [30, 10], "min_resource": 3}},
        [
            ("pruner", "conflict", "`rungs` begin with the first rung: leave `min_resource` out"),
            ("pruner", "conflict", "`rungs` must rise, each value once"),
        ],
    ),
    "rungs behind the end": (
        {"pruner": {"name": "asha", "rungs": [100, 300]}},
        [
            (
                "pruner.rungs",
                "conflict",
                "no rung lies before the end of a training: the first one is at 100 steps, and the "
                "training has 90",
            )
        ],
    ),
    "rungs that no evaluation reaches": (
        {
            "pruner": {"name": "asha", "rungs": [30]},
            "job.training": {"max_steps": 90, "eval_strategy": "steps", "eval_steps": 90},
        },
        [
            (
                "pruner.rungs",
                "conflict",
                "no rung lies before the end of a training: the first one is at 30 steps, and the "
                "training has 90, evaluated every 90: lower `job.training.eval_steps`",
            )
        ],
    ),
    "hyperband without an end": (
        {"pruner": "hyperband", "job.training": {"eval_strategy": "steps", "eval_steps": 10}},
        [
            (
                "pruner.max_resource",
                "missing_field",
                "`hyperband` needs to know how long a whole training is: give `max_resource`, or "
                "`job.training.max_steps` outside of the space",
            )
        ],
    ),
    "pruner without evaluations": (
        {"pruner": "median", "job.training": {"max_steps": 3}},
        [
            (
                "job.training.eval_strategy",
                "conflict",
                "`pruner` `median` compares trials during the training, and "
                "`job.training.eval_strategy` is `no`: set it to `steps` or `epoch`",
            )
        ],
    ),
    "nothing to compare trials by": (
        {
            "job.dataset": {"source": "hub", "name": "org/data"},
            "job.training": {"max_steps": 3},
        },
        [
            (
                "job.dataset.validation",
                "missing_field",
                "a search compares trials by their evaluations: give `validation`, or "
                "`validation_split_percentage`",
            )
        ],
    ),
    "several objectives": (
        {
            "objective": [{"metric": "f1"}, {"metric": "loss"}],
            "sampler": "cmaes",
            "pruner": "median",
            "best": "refit",
        },
        [
            (
                "best",
                "conflict",
                "`best` is `refit`, and several in `objective` have no single best trial: use "
                "`keep`, then publish or clone the job that you choose",
            ),
            (
                "pruner",
                "conflict",
                "`pruner` `median` compares trials by one metric: use `none` for several in "
                "`objective`",
            ),
            (
                "sampler",
                "conflict",
                "`sampler` `cmaes` looks for the best of one metric: use `tpe`, `nsgaii` or `gp` "
                "for several in `objective`",
            ),
        ],
    ),
    "fields that do not vary": (
        {"space": {"priority": [1, 2]}},
        [
            (
                "space.priority",
                "invalid_value",
                "does not vary in a search: it decides when a trial runs, not how it trains",
            )
        ],
    ),
    "publishing to nowhere": (
        {"best": "publish"},
        [
            (
                "best.hub",
                "missing_field",
                "`publish` needs to know where to: give `best.hub`, or `job.hub`",
            )
        ],
    ),
    "what the refit changes": (
        {"best": {"action": "refit", "set": {"training.max_step": 300}}},
        [
            (
                "best.set.training.max_step",
                "unknown_field",
                "unknown field; did you mean `max_steps`?",
            )
        ],
    ),
    "trials to begin with": (
        {"enqueue": [{"training.learning_rat": 1}, {RATE: 5}]},
        [
            (
                "enqueue.0.training.learning_rat",
                "conflict",
                "`enqueue.0.training.learning_rat` is not a field of `space`; did you mean "
                "`training.learning_rate`?",
            ),
            (
                f"enqueue.1.{RATE}",
                "conflict",
                f"`enqueue.1.{RATE}` is 5, which is outside of the field's values in `space`",
            ),
        ],
    ),
    "the template and the search at once": (
        {"job.training": {"eval_strategy": "stepz"}, "max_trial": 3, "max_parallel": 0},
        [
            (
                "job.training.eval_strategy",
                "invalid_value",
                "must be `no` or `steps` or `epoch`; did you mean `steps`?",
            ),
            ("max_parallel", "invalid_value", "must be at least 1"),
            ("max_trial", "unknown_field", "unknown field; did you mean `max_trials`?"),
        ],
    ),
    "a field of a section that the template lacks": (
        {"space": {"peft.r": [4]}},
        [
            (
                "space.peft.r.choices.0",
                "conflict",
                "`job.peft.method`: required, but not given: must be `lora` or `ia3` or "
                "`prompt-tuning` or `prefix-tuning`",
            )
        ],
    ),
}


@pytest.mark.parametrize("name", FAULTS)
def test_faults(name: str) -> None:
    changes, expected = FAULTS[name]
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
        assert (
            found["training.num_train_epochs"].low,
            found["training.num_train_epochs"].high,
        ) == (
            1,
            5,
        )

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

    def test_a_template_outside_of_the_space_is_told(self) -> None:
        found = examined({"space": {RATE: [1e-3, 1e-4]}})
        assert [(each.path, each.code) for each in found.warnings] == [
            (f"job.{RATE}", "outside_of_space")
        ]
