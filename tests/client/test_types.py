"""The models of the client: generated from the document, and lenient towards other releases."""

import os
from pathlib import Path

import pytest
from finetune_client import types

from scripts import client_types
from tests.support.openapi import document

MODULE = Path(types.__file__)


@pytest.mark.usefixtures("processes")
def test_are_those_of_the_document() -> None:
    """After a change of the API: `make client-types`."""
    if not client_types.GENERATOR.is_dir() and os.environ.get("CI") != "true":
        pytest.skip("no datamodel-code-generator here: `make .venv/.dev` installs it")
    assert client_types.module_of(client_types.covered(document())) == MODULE.read_text()


class TestOtherReleases:
    def test_a_field_that_is_new_is_kept(self) -> None:
        found = types.JobDeleted.model_validate({"id": "job-1", "deleted": True, "new": [1]})
        assert found.model_dump() == {"id": "job-1", "deleted": True, "new": [1]}

    def test_a_value_that_is_new_is_left_as_it_came(self) -> None:
        spec = {"task": {"type": "telepathy", "power": 9}, "model": {"name_or_path": "m"}}
        found = types.JobSpec.model_validate({**spec, "dataset": {"source": "hub", "name": "d"}})
        assert found.model_dump(include={"task"}, warnings=False) == {"task": spec["task"]}
        assert isinstance(found.dataset, types.HubDataset)

    def test_a_tag_decides_which_model_it_is(self) -> None:
        for task, model in (("chat", types.ChatSpec), ("causal-lm", types.CausalLMSpec)):
            found = types.JobSpec.model_validate(
                {
                    "task": {"type": task},
                    "model": {"name_or_path": "m"},
                    "dataset": {"source": "hub", "name": "d"},
                }
            )
            assert type(found.task) is model
