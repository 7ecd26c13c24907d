"""Specs that an earlier release stored, with values that are out of the bounds of this one."""

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from service.contract.fields.section import Acceptance
from service.contract.spec.spec import JobSpec
from service.contract.stage.stages import StageRequest
from service.contract.states import Stage
from tests.contract.factories import job_spec, spec_body


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

    def test_a_stage_reads_it(self) -> None:
        stored = job_spec().model_dump(mode="json")
        stored["training"]["max_steps"] = 10**15
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
