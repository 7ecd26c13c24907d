"""The model in memory goes first, but not for ever; projects take turns."""

from service.store.interactive.prediction_claims import Waiting
from worker.supervision.interactive.prediction_turns import MOST_ANSWERS, MOST_SECONDS, Turn


def waiting(*given: tuple[str, str]) -> list[Waiting]:
    """Of (project, model), the oldest first; the ids are their places."""
    return [
        Waiting(str(place), project, model, 0.0) for place, (project, model) in enumerate(given)
    ]


def next_of(turn: Turn, *given: tuple[str, str], refused: tuple[str, ...] = ()) -> str | None:
    found = turn.next_of(waiting(*given), refused, now=0.0)
    return None if found is None else found.id


def test_the_oldest_is_first() -> None:
    assert next_of(Turn(), ("a", "one"), ("b", "two")) == "0"
    assert next_of(Turn()) is None


def test_the_model_in_memory_goes_first_for_some_answers() -> None:
    turn = Turn()
    for _ in range(MOST_ANSWERS):
        assert next_of(turn, ("b", "two"), ("a", "one")) == ("1" if turn.answers else "0")
        turn.answered("one", "c", 0.0)
    assert next_of(turn, ("b", "two"), ("a", "one")) == "0"
    assert next_of(turn, ("a", "one")) == "0"
    turn.answered("two", "b", 0.0)
    assert turn.answers == 1


def test_or_for_some_time() -> None:
    turn = Turn()
    turn.answered("one", "c", 0.0)
    found = turn.next_of(waiting(("b", "two"), ("a", "one")), (), now=MOST_SECONDS + 1)
    assert found is not None
    assert found.model_key == "two"


def test_projects_take_turns() -> None:
    turn = Turn()
    turn.answered("one", "a", 0.0)
    assert next_of(turn, ("a", "one"), ("a", "one"), ("b", "one")) == "2"


def test_a_model_without_a_device_holds_back_no_other() -> None:
    assert next_of(Turn(), ("a", "one"), ("b", "two"), refused=("one",)) == "1"
