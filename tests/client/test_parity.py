"""`Client` and `AsyncClient`, `client.jobs` and its jobs: the same methods and parameters."""

import inspect
from typing import Any

import pytest
from finetune_client import AsyncClient, AsyncJob, AsyncListedJob, Client, Job, ListedJob, types
from finetune_client.model import Model
from finetune_client.resources.files import AsyncFiles, Files
from finetune_client.resources.jobs import AsyncJobs, Jobs
from finetune_client.resources.searches import AsyncSearches, Searches
from finetune_client.resources.webhooks import AsyncWebhooks, Webhooks

Parameters = dict[str, tuple[Any, Any]]
NOT_OF_A_JOB = {"create", "validate", "preview", "retrieve", "list", "table"}
NOT_OF_JOBS = {"refresh", "raise_for_failure"}


def methods(kind: type) -> dict[str, Parameters]:
    known = set(dir(Model)) | set(types.Job.model_fields)
    found = {name: getattr(kind, name) for name in dir(kind) if not name.startswith("_")}
    return {
        name: {
            each.name: (each.kind, each.default)
            for each in inspect.signature(value).parameters.values()
        }
        for name, value in found.items()
        if callable(value) and name not in known
    }


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (Client, AsyncClient),
        (Jobs, AsyncJobs),
        (Files, AsyncFiles),
        (Searches, AsyncSearches),
        (Webhooks, AsyncWebhooks),
        (Job, AsyncJob),
        (ListedJob, AsyncListedJob),
    ],
)
def test_of_the_asynchronous_ones(one: type, other: type) -> None:
    assert methods(one) == methods(other) != {}


def test_of_jobs_and_of_a_job() -> None:
    of_jobs, of_a_job = methods(Jobs), methods(Job)
    assert of_jobs.keys() - NOT_OF_A_JOB == of_a_job.keys() - NOT_OF_JOBS
    for name in of_jobs.keys() - NOT_OF_A_JOB:
        names = [each for each in of_jobs[name] if each != "job_id"]
        assert names == list(of_a_job[name]), name
