"""The life of a job through the newest `openai` client, unmodified. The other releases, and what
takes longer: tests/openai_clients/test_jobs.py."""

from pathlib import Path

import pytest

from tests.e2e.stack import Stack
from tests.openai_clients.releases import NEWEST
from tests.support.models import save_tiny_llama

pytestmark = [
    pytest.mark.parametrize("stack", ["postgres-redis"], indirect=True),
    pytest.mark.timeout(400),
    pytest.mark.long,
]


def test_a_job_from_its_file_to_its_removal(stack: Stack, tiny_model: Path) -> None:
    model = save_tiny_llama(tiny_model.parent / "openai-llama", positions=1024)
    NEWEST.run("jobs", stack.url, str(model), model.name, "short", seconds=300)
