"""Specs for tests: the least that is valid, with what a test wants changed."""

from typing import Any

from service.contract.spec import JobSpec


def spec_body(**changes: Any) -> dict[str, Any]:
    """The JSON of a valid job; `changes` replace whole sections."""
    body: dict[str, Any] = {
        "task": "question-answering",
        "model": {"name_or_path": "org/model"},
        "dataset": {"source": "upload", "train": "file-1"},
    }
    return body | changes


def job_spec(**changes: Any) -> JobSpec:
    return JobSpec.model_validate(spec_body(**changes))
