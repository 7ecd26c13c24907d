from typing import Any

import pytest
from optuna.distributions import (
    BaseDistribution,
    CategoricalDistribution,
    FloatDistribution,
    IntDistribution,
)

from service.contract.search.samplers import RandomSampler
from service.contract.search.space import Dimension
from service.studies.parameters import Parameter, parameters_of
from tests.studies.searches import SPACE, Search


def parameter(**dimension: Any) -> Parameter:
    return parameters_of({"a": Dimension(**dimension)})["a"]


class TestDistributions:
    @pytest.mark.parametrize(
        ("dimension", "distribution"),
        [
            ({"low": 1e-6, "high": 1e-3, "log": True}, FloatDistribution(1e-6, 1e-3, log=True)),
            ({"low": 1, "high": 2, "type": "float"}, FloatDistribution(1.0, 2.0)),
            ({"low": 0.0, "high": 0.75, "step": 0.2}, FloatDistribution(0.0, 0.6, step=0.2)),
            ({"low": 1, "high": 8}, IntDistribution(1, 8)),
            ({"low": 1, "high": 64, "log": True}, IntDistribution(1, 64, log=True)),
            ({"low": 1, "high": 9, "step": 3}, IntDistribution(1, 7, step=3)),
            ({"low": 1.0, "high": 9.0, "type": "int"}, IntDistribution(1, 9)),
            ({"low": 3, "high": 3}, IntDistribution(3, 3)),
            ({"choices": ["a", None, True]}, CategoricalDistribution(["a", None, True])),
        ],
    )
    def test_as_optuna_has_them(
        self, dimension: dict[str, Any], distribution: BaseDistribution
    ) -> None:
        assert parameter(**dimension).distribution == distribution

    def test_one_value_is_enough(self) -> None:
        space = {
            "a": Dimension(low=0.5, high=0.5),
            "b": Dimension(low=3, high=3),
            "c": Dimension(low=0.1, high=0.2, step=0.5),
            "d": Dimension(choices=[{"x": 1}]),
        }
        expected = {"a": 0.5, "b": 3, "c": 0.1, "d": {"x": 1}}
        assert Search(RandomSampler(), space).study.ask().values == expected

    def test_conditions_come_after_what_they_name(self) -> None:
        assert list(parameters_of(SPACE))[-2:] == ["training.optim", "training.momentum"]


class TestChoices:
    @pytest.mark.parametrize(
        "choices",
        [
            [None, {"r": 8, "alpha": 16}, {"r": 16}],
            [[1, 2], [2, 1]],
            [True, 1, 1.0, "1", "true"],
            [["a"], '["a"]'],
        ],
    )
    def test_each_comes_back_as_it_was(self, choices: list[Any]) -> None:
        one = parameter(choices=choices)
        for choice in choices:
            there = one.to_optuna(choice)
            assert isinstance(there, str)
            again = one.from_optuna(there)
            assert (type(again), again) == (type(choice), choice)

    def test_sections_may_have_another_order(self) -> None:
        one = parameter(choices=[{"r": 8, "alpha": 16}])
        assert one.to_optuna({"alpha": 16, "r": 8}) == one.to_optuna({"r": 8, "alpha": 16})

    def test_a_number_of_another_type_is_the_same(self) -> None:
        assert parameter(choices=[0.1, 1.0]).to_optuna(1) == 1.0

    def test_what_is_none_of_them(self) -> None:
        with pytest.raises(ValueError, match="True is not one of the choices of a"):
            parameter(choices=[1, 2]).to_optuna(True)


class TestGrid:
    @pytest.mark.parametrize(
        ("dimension", "values"),
        [
            ({"low": 1, "high": 6, "step": 2}, [1, 3, 5]),
            ({"low": 0.1, "high": 0.45, "step": 0.1}, [0.1, 0.2, 0.3, 0.4]),
            ({"low": 0.3, "high": 0.3}, [0.3]),
            ({"choices": ["b", "a"]}, ["b", "a"]),
        ],
    )
    def test_every_value(self, dimension: dict[str, Any], values: list[Any]) -> None:
        assert parameter(**dimension).grid() == values

    def test_as_many_as_the_contract_counts(self) -> None:
        for low, high, step in ((0.0, 1.0, 0.1), (0.0, 0.3, 0.1), (1e-3, 1.0, 0.007)):
            one = parameter(low=low, high=high, step=step)
            assert len(one.grid()) == one.dimension.size()
            assert all(one.dimension.holds(value) for value in one.grid())
