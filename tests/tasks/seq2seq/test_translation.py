"""What is translation's own: the forms of its rows, and its metric."""

from typing import Any

import pytest
import sacrebleu

from service.contract.failures import FailureCode
from service.contract.spec.spec import JobSpec
from worker.data.table import RowError
from worker.tasks.row_checks import ROW_CHECKS
from worker.tasks.seq2seq.translation import bleu


class TestBleu:
    def test_is_sacrebleus(self) -> None:
        predictions = ["the cat sat on the mat today", "all is well that ends well"]
        references = ["the cat sat on the mat", "all is well that ends better"]
        score = bleu(predictions, references)
        assert score == sacrebleu.corpus_bleu(predictions, [references]).score
        assert score == pytest.approx(78.7511, abs=1e-3)


class TestTranslationRows:
    def clean(self, row: dict[str, Any], split: str = "train", **task: Any) -> dict[str, Any]:
        spec = JobSpec.model_validate(
            {
                "task": {"type": "translation", **task},
                "model": {"name_or_path": "m"},
                "dataset": {"source": "upload", "train": "file-1"},
            }
        )
        return ROW_CHECKS["translation"].cleaner(split, spec.task)(row)

    def test_columns(self) -> None:
        assert self.clean({"source": "a", "target": "b"}) == {"source": "a", "target": "b"}
        assert self.clean({"source": "a"}, "test") == {"source": "a", "target": ""}

    @pytest.mark.parametrize("codes", [("en", "ro"), ("en_XX", "ro_RO")])
    def test_the_hubs_form(self, codes: tuple[str, str]) -> None:
        row = {"translation": {"en": "a", "ro": "b"}}
        found = self.clean(row, source_lang=codes[0], target_lang=codes[1])
        assert found == {"source": "a", "target": "b"}

    @pytest.mark.parametrize(
        ("row", "task", "code"),
        [
            ({"source": "a"}, {}, FailureCode.MISSING_COLUMN),
            ({"source": "a", "target": " "}, {}, FailureCode.UNREADABLE_ROW),
            ({"translation": "a"}, {}, FailureCode.UNREADABLE_ROW),
            ({"translation": {"en": "a"}}, {}, FailureCode.INVALID_OPTION),
            (
                {"translation": {"en": "a"}},
                {"source_lang": "en", "target_lang": "ro"},
                FailureCode.MISSING_COLUMN,
            ),
        ],
    )
    def test_faults(self, row: dict[str, Any], task: dict[str, Any], code: FailureCode) -> None:
        with pytest.raises(RowError) as caught:
            self.clean(row, **task)
        assert caught.value.code is code
