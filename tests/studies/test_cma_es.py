import pickle
from typing import Any

import cmaes
import numpy as np
import pytest

from service.contract.search.samplers import CmaEsSampler
from service.contract.search.states import TrialState
from service.studies.cma_es import _from_numbers, _to_numbers
from tests.studies.searches import Search, loss


def optimizer(popsize: int | None) -> cmaes.CMA:
    return cmaes.CMA(
        mean=np.full(3, 0.5),
        sigma=0.2,
        bounds=np.array([[0.0, 1.0]] * 3),
        n_max_resampling=30,
        seed=1,
        population_size=popsize,
    )


def taught(one: cmaes.CMA) -> None:
    points = [one.ask() for _ in range(one.population_size)]
    one.tell([(point, float(np.sum(point**2))) for point in points])


class TestNumbers:
    @pytest.mark.parametrize("popsize", [None, 5])
    def test_it_continues_as_the_pickle_does(self, popsize: int | None) -> None:
        one = optimizer(popsize)
        for _ in range(5):
            taught(one)
            pickled = pickle.loads(pickle.dumps(one))
            numbers = _from_numbers(_to_numbers(one), popsize)
            for _ in range(2):
                for each in (pickled, numbers):
                    each.reseed_rng(7)
                    taught(each)
                assert numbers.generation == pickled.generation
                assert numbers._sigma == pickled._sigma
                for name in ("_mean", "_C", "_p_sigma", "_pc"):
                    assert np.array_equal(getattr(numbers, name), getattr(pickled, name))
            one = numbers


class TestSampler:
    def test_nothing_is_unpickled(self, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: Any) -> None:
            raise AssertionError("unpickled")

        monkeypatch.setattr(pickle, "loads", refuse)
        search = Search(CmaEsSampler(popsize=4), crashes=True)
        for number in range(20):
            search.end(number, TrialState.COMPLETE, [loss(search.ask().values)])
        notes = [
            trial.attrs["cma:optimizer"]
            for trial in search.trials
            if "cma:optimizer" in trial.attrs
        ]
        assert [note["generation"] for note in notes] == [1, 2, 3, 4]
