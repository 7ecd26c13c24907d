import pytest

from worker.data.table import RowError
from worker.tasks.row_checks import ROW_CHECKS

clean = ROW_CHECKS["causal-lm"].cleaner("train", None)


class TestClean:
    @pytest.mark.parametrize("text", ["a line\n", "", " ", "é😀", "\ufeff", "\x00"])
    def test_any_text_will_do(self, text: str) -> None:
        assert clean({"text": text}) == {"text": text}

    @pytest.mark.parametrize(
        ("value", "problem", "reason"),
        [
            (None, "`text` must be text, not null", "not_text"),
            (3, "`text` must be text, not int", "not_text"),
            (["a"], "`text` must be text, not list", "not_text"),
            # Half of a surrogate pair: JSON can hold one, UTF-8 and so Arrow cannot.
            ("\ud800", "`text` is not valid Unicode: surrogates not allowed", "invalid_unicode"),
            ("a\udfffb", "`text` is not valid Unicode: surrogates not allowed", "invalid_unicode"),
        ],
    )
    def test_names_what_is_none(self, value: object, problem: str, reason: str) -> None:
        with pytest.raises(RowError) as caught:
            clean({"text": value})
        assert (str(caught.value), caught.value.reason) == (problem, reason)
