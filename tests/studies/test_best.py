from service.contract.search.objectives import Objective
from service.contract.search.states import TrialState
from service.studies.best import Best
from service.studies.history import Trial

F1, LOSS = Objective(metric="f1"), Objective(metric="loss")


def complete(number: int, *scores: float) -> Trial:
    return Trial(number, {}, TrialState.COMPLETE, list(scores))


class TestOneObjective:
    def test_the_highest_or_the_lowest(self) -> None:
        for objective, best in ((F1, 1), (LOSS, 2)):
            found = Best([objective])
            for number, score in enumerate((0.5, 0.9, 0.1)):
                found.add(complete(number, score))
            assert found.numbers == [best]

    def test_of_equal_ones_the_one_that_came_first(self) -> None:
        found = Best([F1])
        assert found.add(complete(3, 0.5))
        assert not found.add(complete(1, 0.5))
        assert (found.numbers, found.scores) == ([3], [[0.5]])


class TestSeveralObjectives:
    def test_those_that_no_other_one_beats(self) -> None:
        found = Best([F1, LOSS])
        assert found.add(complete(0, 0.5, 0.5))
        assert found.add(complete(1, 0.9, 0.9))
        assert not found.add(complete(2, 0.4, 0.6))
        assert found.add(complete(3, 0.6, 0.4))  # beats the first
        assert found.numbers == [1, 3]
        assert found.scores == [[0.9, 0.9], [0.6, 0.4]]

    def test_equal_ones_are_all_there(self) -> None:
        found = Best([F1, LOSS])
        found.add(complete(0, 0.5, 0.5))
        assert found.add(complete(1, 0.5, 0.5))
        assert found.numbers == [0, 1]
