"""worker.tasks.common.packing: best-fit decreasing."""

import time
from collections import Counter
from itertools import chain

import numpy as np
import pytest

from worker.tasks.common.packing import best_fit_decreasing


def naive(lengths: list[int], capacity: int) -> Counter[int]:
    """Room that is left → number of bins; each sequence in turn, O(n²)."""
    rooms: list[int] = []
    for length in sorted(lengths, reverse=True):
        fitting = [(room, number) for number, room in enumerate(rooms) if room >= length]
        if fitting:
            rooms[min(fitting)[1]] -= length
        else:
            rooms.append(capacity - length)
    return Counter(rooms)


class TestBestFitDecreasing:
    @pytest.mark.parametrize("seed", range(40))
    def test_is_the_naive_one(self, seed: int) -> None:
        draw = np.random.default_rng(seed)
        capacity = int(draw.integers(1, 70))
        lengths = draw.integers(1, capacity + 1, draw.integers(0, 90)).tolist()
        bins = best_fit_decreasing(lengths, capacity)
        assert sorted(chain.from_iterable(each.tolist() for each in bins)) == [*range(len(lengths))]
        rooms = Counter(capacity - sum(lengths[number] for number in each) for each in bins)
        assert rooms == naive(lengths, capacity)

    def test_the_fullest_bin_with_room_comes_first(self) -> None:
        bins = best_fit_decreasing([3, 6, 2, 7, 2], 10)
        assert [each.tolist() for each in bins] == [[0, 3], [1, 2, 4]]

    def test_sequences_and_bins_are_in_the_order_of_the_data(self) -> None:
        bins = best_fit_decreasing([1, 5, 4, 1, 5, 4], 6)
        members = [each.tolist() for each in bins]
        assert members == sorted(members)
        assert all(each == sorted(each) for each in members)

    def test_equal_lengths_fill_bins_one_after_the_other(self) -> None:
        assert [len(each) for each in best_fit_decreasing([3] * 8, 10)] == [3, 3, 2]

    def test_a_million_sequences(self) -> None:
        lengths = np.random.default_rng(0).lognormal(5, 0.8, 10**6).clip(1, 2048).astype(int)
        began = time.thread_time()
        bins = best_fit_decreasing(lengths, 2048)
        assert time.thread_time() - began < 10  # 0.4 s on one core
        assert lengths.sum() / len(bins) / 2048 > 0.999
