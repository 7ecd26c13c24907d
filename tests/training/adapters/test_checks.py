"""Regular expressions of a spec, which are compiled here for the first time."""

from typing import Any

import pytest
import torch
import transformers

from service.contract.failures import FailureCode
from tests.contract.factories import job_spec
from tests.training.support.jobs import fails_with
from worker.training.adapters import checks


def _check(**options: Any) -> None:
    config = transformers.BertConfig(
        num_hidden_layers=1,
        num_attention_heads=2,
        hidden_size=8,
        intermediate_size=8,
        vocab_size=30,
    )
    with torch.device("meta"):
        model = transformers.AutoModelForMaskedLM.from_config(config)
    spec = job_spec(task="masked-lm", peft={"method": "lora", **options})
    checks.check(model, spec, pads_left=False)


class TestRegularExpressions:
    @pytest.mark.parametrize(
        ("options", "path"),
        [
            ({"target_modules": "(?<=a+)query"}, "peft.target_modules"),
            (
                {"target_modules": ["query"], "rank_pattern": {"(?<=a+)query": 4}},
                "peft.rank_pattern",
            ),
        ],
    )
    def test_one_that_cannot_be_compiled_is_the_users_fault(
        self, options: dict[str, Any], path: str
    ) -> None:
        with fails_with(FailureCode.INVALID_OPTION, "look-behind requires fixed-width") as caught:
            _check(**options)
        assert path in caught.value.failure.message

    def test_one_that_matches_is_used(self) -> None:
        _check(target_modules=".*query", rank_pattern={"query": 4})
