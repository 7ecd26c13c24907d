"""worker.tasks.chat.exact_match: the result in an answer."""

import time

import pytest

from service.contract.failures import StageError
from worker.tasks.chat.exact_match import ResultPattern, share


@pytest.mark.parametrize(
    ("pattern", "answer", "result"),
    [
        (r"#### (-?[\d.,]+)", "#### 3, no: #### -1,000", "-1,000"),
        (r"#### (-?[\d.,]+)", "it is 3", None),
        (r"\d+ apples", "2 apples and 30 apples.", "30 apples"),
        (r"answer:(.*)", "answer:  four  \nthat is all", "four"),
        (r"(\d+)|none", "none", None),
    ],
)
def test_the_first_group_of_the_last_match(pattern: str, answer: str, result: str | None) -> None:
    assert ResultPattern(pattern).result(answer) == result


def test_an_expression_that_takes_for_ever(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("worker.tasks.chat.exact_match._SECONDS", 0.1)
    pattern = ResultPattern(r"(?:x|xx)+[yz]")
    began = time.monotonic()
    with pytest.raises(TimeoutError):
        pattern.result("x" * 60)
    assert pattern.result_or_none("x" * 60) is None
    assert time.monotonic() - began < 5


def test_an_expression_that_only_another_library_knows() -> None:
    with pytest.raises(StageError, match=r"`task.generate.exact_match` is not a valid"):
        ResultPattern(r"(?<a>x)(?<=x{2,}(")


def test_rows_without_an_expected_result_do_not_count() -> None:
    assert share(["1", "2", None, "3"], ["1", "1", "1", None]) == 1 / 3
