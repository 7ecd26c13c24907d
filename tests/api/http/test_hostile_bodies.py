"""Hostile bodies: what it costs to find their faults is bounded."""

from collections import Counter
from difflib import SequenceMatcher
from typing import Any

import pytest

from service.api.faults.collect import collect
from service.api.faults.shorten import MOST_FAULTS
from service.contract.spec.spec import JobSpec
from tests.api.factories import spec
from tests.api.http.hostile_bodies import hostile_bodies


class TestHostileBodies:
    """Their cost is bounded by work, not measured in seconds."""

    @pytest.mark.parametrize("body", hostile_bodies().values(), ids=hostile_bodies())
    def test_one_validation_and_a_bounded_list(
        self, body: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        validated: list[Any] = []
        compared: list[str] = []
        validate, compare = JobSpec.model_validate, SequenceMatcher.quick_ratio

        def counted_validation(given: Any, **options: Any) -> JobSpec:
            validated.append(given)
            return validate(given, **options)

        def counted_comparison(matcher: SequenceMatcher[str]) -> float:
            compared.append(matcher.a)  # type: ignore[attr-defined]
            return compare(matcher)

        monkeypatch.setattr(JobSpec, "model_validate", counted_validation)
        monkeypatch.setattr(SequenceMatcher, "quick_ratio", counted_comparison)
        faults = collect(body).faults
        assert 0 < len(faults) <= MOST_FAULTS
        assert len(validated) == 1
        assert _entries(validated[0]) < 25_000
        assert len(compared) < 100 * MOST_FAULTS
        assert max(len(name) for name in [*compared, ""]) < 100

    def test_every_section_has_its_share_of_the_list(self) -> None:
        unknown = {f"learning_rate{number}": 1 for number in range(5000)}
        faults = collect(spec(training=unknown, resources=unknown, priority=10)).faults
        sections = Counter(fault.path.partition(".")[0] for fault in faults)
        assert sections == {"training": 33, "resources": 33, "priority": 1}

    def test_nothing_that_is_valid_is_shortened(self) -> None:
        labels = {str(number): f"label {number}" for number in range(5000)}
        sets = {f"set{number}": [f"file-{item}" for item in range(1000)] for number in range(20)}
        body = spec(
            model={
                "config": {"model_type": "bert", "config_overrides": {"id2label": labels}},
                "tokenizer_name": "org/tokenizer",
            },
            dataset={"source": "upload", "train": "file-1", "validation": sets},
        )
        assert collect(body).spec == JobSpec.model_validate(body)


def _entries(value: Any) -> int:
    inner = value.values() if isinstance(value, dict) else value if isinstance(value, list) else ()
    return len(inner) + sum(map(_entries, inner))
