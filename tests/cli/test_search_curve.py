"""The curve of the best score, in characters."""

import pytest

from service.cli.search import curve

SCORES = {3: 0.5, 0: 0.4, 1: 0.3, 7: 0.6}


class TestBestSoFar:
    def test_in_the_order_of_the_trials(self) -> None:
        found = curve.best_so_far(SCORES, maximize=True)
        assert found == [(0, 0.4), (3, 0.5), (7, 0.6)]

    def test_the_least_where_it_is_minimized(self) -> None:
        assert curve.best_so_far(SCORES, maximize=False) == [(0, 0.4), (1, 0.3)]

    def test_none_before_the_first_score(self) -> None:
        assert curve.best_so_far({}, maximize=True) == []


class TestDrawn:
    def test_rises_with_its_axes(self) -> None:
        lines = curve.drawn([(0, 10.0), (5, 20.0), (9, 30.0)], last=9, width=14, height=3)
        assert lines == [
            "30 ┤         ╭",
            "20 ┤     ╭───╯",
            "10 ┤─────╯",
            "   └──────────",
            "    0  trial 9",
        ]

    def test_falls_where_it_is_minimized(self) -> None:
        lines = curve.drawn([(0, 2.0), (9, 1.0)], last=18, width=20, height=3)
        assert lines[:3] == [
            "  2 ┤───────╮",
            "1.5 ┤       │",
            "  1 ┤       ╰───────",
        ]

    def test_one_trial_is_a_level_line(self) -> None:
        lines = curve.drawn([(0, 5.0)], last=0, width=20, height=3)
        assert sum("─" in line for line in lines[:3]) == 1

    @pytest.mark.parametrize("width", [13, 40, 80, 200])
    def test_is_never_wider_than_its_room(self, width: int) -> None:
        points = [(0, 0.001), (4_000, 123_456.0)]
        assert all(len(line) <= width for line in curve.drawn(points, 9_999, width, 7))

    def test_is_left_out_where_there_is_no_room(self) -> None:
        assert curve.drawn([(0, 5.0)], last=0, width=10, height=3) == []
