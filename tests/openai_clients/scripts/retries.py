"""The client's own retries, through a proxy that treats the requests as the test says."""

import sys
from typing import Any

import openai

from tests.openai_clients.scripts.client import connected, exact, refused


def main() -> None:
    client = connected(max_retries=2)
    body: dict[str, Any] = {"model": "org/base", "training_file": sys.argv[2]}
    create = client.fine_tuning.jobs
    jobs = [exact(create, "create", **body, suffix=f"job-{number}").id for number in range(3)]
    assert [job.id for job in client.fine_tuning.jobs.list()] == jobs[::-1]
    cancelled = exact(client.fine_tuning.jobs, "cancel", jobs[0])
    assert (cancelled.id, cancelled.status) == (jobs[0], "cancelled")
    refused(openai.ConflictError, lambda: client.fine_tuning.jobs.cancel(jobs[0]))


if __name__ == "__main__":
    main()
