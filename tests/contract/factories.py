"""Specs for tests: the least that is valid, with what a test wants changed."""

import json
from pathlib import Path
from typing import Any, Final

from service.contract.spec.spec import JobSpec

DUMPS: Final[dict[str, dict[str, Any]]] = json.loads(
    Path(__file__).with_name("training_arguments_dumps.json").read_text()
)
"""What `Seq2SeqTrainingArguments(output_dir="out").to_dict()` returns in releases of 4.x."""


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
