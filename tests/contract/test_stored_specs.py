"""Specs that an earlier release stored, with values that are out of the bounds of this one."""

import json
from pathlib import Path
from typing import Any, Final

import pytest
from pydantic import ValidationError

from service.contract.section import Acceptance
from service.contract.spec import JobSpec
from service.contract.stages import StageRequest
from service.contract.states import Stage
from tests.contract.factories import job_spec, spec_body

# Made by the last release without bounds: the largest values of each kind that it took.
STORED: Final[list[dict[str, Any]]] = json.loads(
    Path(__file__).with_name("stored_specs.json").read_text(encoding="utf-8")
)

ADDED_SINCE: Final[dict[str, Any]] = {"secrets": None, "webhooks": []}
ADDED_TO_TASK: Final[dict[str, dict[str, Any]]] = {
    "causal-lm": {"packing": "off"},
    "text-classification": {"label_format": None, "label_columns": None},
}


@pytest.mark.parametrize("stored", STORED, ids=[spec["task"]["type"] for spec in STORED])
class TestStoredSpecs:
    def test_are_read_as_they_were_stored(self, stored: dict[str, Any]) -> None:
        spec = JobSpec.accepted(stored)
        read = json.loads(json.dumps(spec.model_dump(mode="json", warnings=False)))
        added = ADDED_TO_TASK.get(stored["task"]["type"], {})
        assert read == stored | ADDED_SINCE | {"task": stored["task"] | added}
        assert spec.variant().startswith(stored["task"]["type"])
        assert spec.dataset.source == stored["dataset"]["source"]

    def test_are_refused_from_a_client(self, stored: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            JobSpec.model_validate(stored)


class TestAccepted:
    def test_two_specs_do_not_mix(self) -> None:
        first = job_spec().model_dump(mode="json")
        first["training"]["max_steps"] = 10**15
        second = job_spec(training={"max_steps": 7}).model_dump(mode="json")
        assert JobSpec.accepted(first).training.max_steps == 10**15
        assert JobSpec.accepted(second).training.max_steps == 7
        assert JobSpec.accepted(first).training.num_train_epochs == 3

    def test_a_required_value_may_be_out_of_bounds(self) -> None:
        stored = job_spec().model_dump(mode="json")
        stored["dataset"]["train"] = [f"file-{number}" for number in range(2000)]
        assert JobSpec.accepted(stored).dataset.train == stored["dataset"]["train"]

    @pytest.mark.parametrize(
        "change",
        [
            {"unknown": 1},
            {"training": {"max_steps": "many"}},
            {"training": {"max_steps": 10**15, "unknown": 1}},
            {"task": {"type": "question-answering", "max_seq_length": 10**15, "unknown": 1}},
            {"dataset": {"source": "upload"}},
        ],
    )
    def test_what_no_release_took_is_refused(self, change: dict[str, Any]) -> None:
        with pytest.raises(ValidationError):
            JobSpec.accepted(spec_body(**change))

    @pytest.mark.parametrize("stored", STORED, ids=[spec["task"]["type"] for spec in STORED])
    def test_a_stage_reads_them(self, stored: dict[str, Any]) -> None:
        request = StageRequest(
            job_id="job-1",
            stage=Stage.PREPARE,
            epoch=1,
            attempt=1,
            spec=JobSpec.accepted(stored),
            workspace=Path("/w"),
            attempt_dir=Path("/w/1"),
            cache_dir=Path("/c"),
        )
        written = request.model_dump_json(warnings=False)
        assert StageRequest.model_validate_json(written, context=Acceptance()) == request
