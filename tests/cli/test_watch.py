"""`finetune watch` on jobs that the API has created."""

import pytest

from service.cli import watch
from tests.cli.job_pages import make_job


class TestExitStatus:
    @pytest.mark.parametrize(
        ("state", "status"), [("succeeded", 0), ("failed", 1), ("cancelled", 1)]
    )
    def test_by_state(self, state: str, status: int) -> None:
        assert watch.exit_status(make_job(state=state)) == status
