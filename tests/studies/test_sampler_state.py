import json

import numpy as np
import pytest
from optuna.samplers import BaseSampler, RandomSampler

from service.contract.search.samplers import GpSampler, SamplerSpec, TpeSampler
from service.contract.search.states import TrialState
from service.studies import sampler_state
from service.studies.packing import pack, unpack
from tests.studies.searches import Search, loss


class TestPacking:
    @pytest.mark.parametrize("value", [0.1, -0.0, 1e308, 5e-324, np.inf, np.nan])
    def test_bit_for_bit(self, value: float) -> None:
        array = np.array([value, 1.0])
        assert unpack(pack(array)).tobytes() == array.tobytes()

    def test_it_can_be_changed(self) -> None:
        array = unpack(pack(np.zeros(2)))
        array += 1
        assert array.tolist() == [1.0, 1.0]


class TestRandomNumbers:
    def test_they_go_on(self) -> None:
        one, other = RandomSampler(seed=1), RandomSampler(seed=2)
        # An odd number of normal ones: the second of a pair is waiting.
        one._rng.rng.randn(3)
        self._copy(one, other)
        assert one._rng.rng.randn(5).tolist() == other._rng.rng.randn(5).tolist()
        self._copy(one, other)
        assert one._rng.rng.rand(700).tolist() == other._rng.rng.rand(700).tolist()

    @staticmethod
    def _copy(one: BaseSampler, other: BaseSampler) -> None:
        state = json.loads(json.dumps(sampler_state.save(one)))
        sampler_state.restore(other, state, {})


class TestSize:
    @pytest.mark.parametrize("spec", [TpeSampler(), GpSampler(n_startup_trials=4)])
    def test_it_does_not_grow_with_the_trials(self, spec: SamplerSpec) -> None:
        search = Search(spec)
        sizes = []
        for number in range(7):
            search.end(number, TrialState.COMPLETE, [loss(search.ask().values)])
            sizes.append(len(json.dumps(search.state)))
        assert sizes[-1] < 8_000
        assert sizes[-1] - sizes[-2] < 20
