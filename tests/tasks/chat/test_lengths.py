"""worker.tasks.chat.lengths: where rows train, and what cutting them costs."""

import datasets
import numpy as np
import pytest

from worker.tasks.chat.lengths import Cut, chosen, first_trained, trained_within
from worker.tasks.common.list_columns import ListColumns


def columns(*trained: list[int]) -> ListColumns:
    return ListColumns(datasets.Dataset.from_dict({"trained": list(trained)}), ["trained"])


ROWS = ([1, 0, 0, 1, 1], [0, 1], [0, 0, 0], [1], [0, 0, 1])


class TestWhereRowsTrain:
    def test_the_first_token_is_never_predicted(self) -> None:
        assert first_trained(columns(*ROWS)).tolist() == [4, 2, 0, 0, 3]

    @pytest.mark.parametrize(
        ("length", "expected"),
        [(1, [0, 0, 0, 0, 0]), (2, [0, 1, 0, 0, 0]), (4, [1, 1, 0, 0, 1]), (9, [2, 1, 0, 0, 1])],
    )
    def test_within_a_length(self, length: int, expected: list[int]) -> None:
        assert trained_within(columns(*ROWS), length).tolist() == expected

    def test_is_the_same_in_any_parts(self) -> None:
        parts = datasets.concatenate_datasets(
            [datasets.Dataset.from_dict({"trained": [row]}) for row in ROWS]
        )
        assert first_trained(ListColumns(parts, ["trained"])).tolist() == [4, 2, 0, 0, 3]

    def test_what_is_cut(self) -> None:
        assert Cut.from_lengths(columns(*ROWS), 3) == Cut(rows=1, tokens=2, trained=2)
        assert Cut.from_lengths(columns(*ROWS), 5) == Cut(rows=0, tokens=0, trained=0)
        assert str(Cut(2, 2000, 30)) == (
            "2 rows longer than that are cut at the end, 2,000 tokens in all; 30 of these would "
            "have been trained"
        )


class TestChosen:
    TOKENS = np.array([*range(100, 199), 1000])

    def test_99_of_100_rows(self) -> None:
        """The 99th of 100 has 198 tokens, which is rounded up; the last has far more."""
        assert chosen(self.TOKENS, np.ones(100, dtype=np.int64)) == 256

    def test_each_row_trains_a_token(self) -> None:
        needed = np.ones(100, dtype=np.int64)
        needed[-1] = 601
        assert chosen(self.TOKENS, needed) == 601

    @pytest.mark.parametrize(("longest", "length"), [(384, 384), (385, 256)])
    def test_nothing_is_cut_if_the_longest_is_near(self, longest: int, length: int) -> None:
        tokens = np.array([*self.TOKENS[:-1], longest])
        assert chosen(tokens, np.ones(100, dtype=np.int64)) == length
